/** Keyboard shortcuts of one key. They do nothing while somebody types, or in a dialog. */
import { useLayoutEffect, useRef } from "preact/hooks";

export type Shortcuts = Record<string, (event: KeyboardEvent) => void>;

export function useShortcuts(shortcuts: Shortcuts): void {
  const current = useRef(shortcuts);
  current.current = shortcuts;
  // With the page, not after it is painted: a key that is pressed at once counts.
  useLayoutEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event)) return;
      const action = current.current[event.key];
      if (!action) return;
      event.preventDefault();
      action(event);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

function isTyping({ target }: KeyboardEvent): boolean {
  return target instanceof Element && target.closest("input, textarea, select, dialog, .xterm") !== null;
}
