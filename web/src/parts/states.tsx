/** What stands in place of content: nothing there, not there yet, gone, or not allowed. */
import type { ComponentChildren } from "preact";

interface Props {
  title: string;
  children?: ComponentChildren;
}

export function Empty({ title, children }: Props) {
  return (
    <div class="state">
      <p class="state-title">{title}</p>
      {children}
    </div>
  );
}

export function Loading({ what }: { what: string }) {
  return (
    <div class="state" role="status">
      <span class="spinner" aria-hidden="true" />
      <p>Loading {what}…</p>
    </div>
  );
}

export function Failure({ title, children }: Props) {
  return (
    <div class="state state-bad" role="alert">
      <p class="state-title">{title}</p>
      {children}
    </div>
  );
}
