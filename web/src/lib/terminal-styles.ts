/**
 * Lets xterm.js keep to our content security policy.
 *
 * It writes <style> elements and style attributes, which `style-src 'self'` forbids. Here the first
 * become constructed style sheets and the second properties. The policy allows both, since only
 * scripts can make them: nothing that a box prints can.
 */

const createElement = document.createElement.bind(document);

export function keepStylesInPolicy(): void {
  document.createElement = ((tag: string, options?: ElementCreationOptions) =>
    tag === "style" ? sheetElement() : createElement(tag, options)) as typeof document.createElement;
  HTMLSpanElement.prototype.setAttribute = function (name, value) {
    if (name === "style") this.style.cssText = value;
    else Element.prototype.setAttribute.call(this, name, value);
  };
}

/** An element whose text is a style sheet of the page, until it is removed. */
function sheetElement(): HTMLElement {
  const made = createElement("span");
  made.hidden = true;
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);
  Object.defineProperty(made, "textContent", { set: (text: string) => sheet.replaceSync(text) });
  made.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== sheet);
    Element.prototype.remove.call(made);
  };
  return made;
}
