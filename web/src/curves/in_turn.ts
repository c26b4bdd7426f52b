/** Work that would keep the page's thread together, done one piece after another. */

const waiting: (() => void)[] = [];
let isGoing = false;

/** Do it when what was asked for before is done, in a task of its own; returns what takes it back. */
export function doInTurn(work: () => void): () => void {
  waiting.push(work);
  if (!isGoing) {
    isGoing = true;
    setTimeout(goOn);
  }
  return () => {
    const place = waiting.indexOf(work);
    if (place >= 0) waiting.splice(place, 1);
  };
}

function goOn(): void {
  const next = waiting.shift();
  if (!next) {
    isGoing = false;
    return;
  }
  setTimeout(goOn);
  next();
}
