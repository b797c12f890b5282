/** A small graph of the last values, filled below the line. */

const WIDTH = 100;
const HEIGHT = 28;

interface Props {
  values: (number | null)[];
  /** The top of the graph; left out: the largest value. */
  most?: number;
  /** For those who do not see it. */
  label: string;
}

export function Sparkline({ values, most, label }: Props) {
  const known = values.filter((value): value is number => value !== null);
  const top = Math.max(most ?? 0, ...known, 1e-9);
  const step = WIDTH / Math.max(known.length - 1, 1);
  const points = known.map((value, at) => `${(at * step).toFixed(1)},${(HEIGHT - 1 - (value / top) * (HEIGHT - 2)).toFixed(1)}`);
  return (
    <svg class="sparkline" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
      {points.length > 1 && (
        <>
          <polygon points={`0,${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`} />
          <polyline points={points.join(" ")} />
        </>
      )}
    </svg>
  );
}
