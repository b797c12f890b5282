/** A long list of which only the rows on the screen are in the page. */
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

const SPARE = 6;

interface Props<T> {
  items: T[];
  rowHeight: number;
  /** A row to bring into view, by its place. */
  reveal: number;
  onVisible: (items: T[]) => void;
  children: (item: T, place: number) => ComponentChildren;
}

export function VirtualRows<T>({ items, rowHeight, reveal, onVisible, children }: Props<T>) {
  const element = useRef<HTMLDivElement>(null);
  const [{ top, height }, setWindow] = useState({ top: 0, height: 800 });

  useLayoutEffect(() => {
    const box = element.current!;
    const look = () => setWindow({ top: box.scrollTop, height: box.clientHeight });
    const observer = new ResizeObserver(look);
    observer.observe(box);
    box.addEventListener("scroll", look, { passive: true });
    look();
    return () => (observer.disconnect(), box.removeEventListener("scroll", look));
  }, []);

  useLayoutEffect(() => {
    const box = element.current!;
    if (reveal < 0) return;
    const at = reveal * rowHeight;
    if (at < box.scrollTop) box.scrollTop = at;
    else if (at + rowHeight > box.scrollTop + box.clientHeight) box.scrollTop = at + rowHeight - box.clientHeight;
  }, [reveal, rowHeight]);

  const first = Math.max(0, Math.floor(top / rowHeight) - SPARE);
  const last = Math.min(items.length, Math.ceil((top + height) / rowHeight) + SPARE);
  const seen = items.slice(Math.floor(top / rowHeight), Math.ceil((top + height) / rowHeight));
  useEffect(() => onVisible(seen));

  return (
    <div class="rows" ref={element} role="rowgroup" tabIndex={-1}>
      <div class="rows-all" style={{ height: `${items.length * rowHeight}px` }}>
        <div class="rows-shown" style={{ transform: `translateY(${first * rowHeight}px)` }}>
          {items.slice(first, last).map((item, at) => children(item, first + at))}
        </div>
      </div>
    </div>
  );
}
