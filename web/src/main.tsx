import "@xterm/xterm/css/xterm.css";
import "./style.css";
import { render } from "preact";
import { App } from "./app";
import { keepStylesInPolicy } from "./lib/terminal-styles";

keepStylesInPolicy();
const place = document.getElementById("app")!;
place.replaceChildren();
render(<App />, place);
