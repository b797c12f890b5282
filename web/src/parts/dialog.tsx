/** A dialog over the page. The browser keeps the focus in it and gives it back. */
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

interface Props {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
}

export function Dialog({ title, onClose, children }: Props) {
  const element = useRef<HTMLDialogElement>(null);
  const over = useRef(false);
  useLayoutEffect(() => {
    const dialog = element.current!;
    dialog.showModal();
    return () => {
      over.current = true;
      dialog.close();
    };
  }, []);
  // The browser tells of a close later, when the next dialog may be open: it must not close that one.
  return (
    <dialog ref={element} onClose={() => over.current || onClose()} aria-labelledby="dialog-title">
      <h2 id="dialog-title">{title}</h2>
      {children}
    </dialog>
  );
}

interface QuestionProps extends Props {
  action: string;
  onConfirm: () => void;
}

/** Asks before something that cannot be undone. */
export function Question({ title, action, onConfirm, onClose, children }: QuestionProps) {
  return (
    <Dialog title={title} onClose={onClose}>
      {children}
      <div class="dialog-buttons">
        <button type="button" onClick={onClose}>
          Cancel
        </button>
        <button type="button" class="danger" onClick={onConfirm}>
          {action}
        </button>
      </div>
    </Dialog>
  );
}
