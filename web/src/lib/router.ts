/** Where in the console we are: kept after the #, so that one page serves all of it. */
import { signal } from "@preact/signals";

function here(): string[] {
  return location.hash
    .replace(/^#\/?/, "")
    .split("/")
    .filter(Boolean)
    .map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    });
}

export const route = signal(here());
addEventListener("hashchange", () => (route.value = here()));

export function link(...parts: string[]): string {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export function go(...parts: string[]): void {
  location.hash = link(...parts);
}

/** Go there without a step in the browser's history. */
export function replace(...parts: string[]): void {
  history.replaceState(null, "", link(...parts));
  route.value = parts;
}
