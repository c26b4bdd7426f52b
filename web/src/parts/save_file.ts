/** Texts as files of the reader's machine. */

/** Save the pieces, one behind the other, as a file of this name. */
export function saveText(name: string, pieces: BlobPart[]): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(pieces));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
