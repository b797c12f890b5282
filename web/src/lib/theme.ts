/** Light or dark: as the system has it, unless chosen here. */
import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const STORED = "sandbox.theme";
const systemDark = matchMedia("(prefers-color-scheme: dark)");

export const theme = signal<Theme>((localStorage.getItem(STORED) as Theme | null) ?? "system");
export const dark = signal(false);

function update(): void {
  dark.value = theme.value === "dark" || (theme.value === "system" && systemDark.matches);
  document.documentElement.dataset.theme = dark.value ? "dark" : "light";
}

systemDark.addEventListener("change", update);
effect(() => {
  localStorage.setItem(STORED, theme.value);
  update();
});

export function nextTheme(): void {
  const order: Theme[] = ["system", "light", "dark"];
  theme.value = order[(order.indexOf(theme.value) + 1) % order.length]!;
}
