// Builds the console into the folder that is given: node build.mjs FOLDER
//
// The same sources and packages give the same bytes: the built files are committed, and
// tests/console compares them.
import { cp, mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import * as esbuild from "esbuild";

const here = import.meta.dirname ?? new URL(".", import.meta.url).pathname;
const folder = process.argv[2];
if (!folder) {
  console.error("usage: node build.mjs FOLDER");
  process.exit(2);
}

await rm(folder, { recursive: true, force: true });
await mkdir(folder, { recursive: true });
await esbuild.build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: folder,
  bundle: true,
  minify: true,
  format: "iife",
  // Browsers of 2024 and later; older ones do not know light-dark() in the style sheet.
  target: ["chrome123", "firefox121", "safari17.5"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  charset: "utf8",
});
for (const file of ["index.html", "icon.svg"]) await cp(join(here, file), join(folder, file));
await writeFile(join(folder, "licenses.txt"), await licenses());

/** The licences of the packages that are in app.js and app.css. */
async function licenses() {
  const lock = JSON.parse(await readFile(join(here, "package-lock.json"), "utf8"));
  const used = Object.entries(lock.packages).filter(([path, about]) => path && !about.dev && !about.peer);
  const texts = used.map(async ([path, about]) => {
    const text = await readFile(join(here, path, "LICENSE"), "utf8");
    return `${path.replace("node_modules/", "")} ${about.version}\n\n${text.trim()}\n`;
  });
  return (await Promise.all(texts)).join(`\n${"-".repeat(72)}\n\n`);
}
