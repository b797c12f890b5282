/** Hands an answer to the browser as a download: a plain link could not send the key. */
export async function save(answer: Response, path: string): Promise<void> {
  const url = URL.createObjectURL(new Blob([await answer.blob()], { type: "application/octet-stream" }));
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = path.split("/").at(-1) || "download";
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
