/** The points that no other one is better than in both of two objectives. */

export interface Objectives {
  x: number;
  y: number;
}

/**
 * Which of the points are on the Pareto front: those that no other is at least as good as in both
 * objectives and better in one. `isLess` tells of each whether less of it is better.
 */
export function paretoFront(points: readonly Objectives[], isLess: { x: boolean; y: boolean }): boolean[] {
  const [signX, signY] = [isLess.x ? 1 : -1, isLess.y ? 1 : -1];
  const losses = points.map(({ x, y }, n) => ({ n, x: signX * x, y: signY * y }));
  losses.sort((a, b) => a.x - b.x || a.y - b.y);
  const isFront = new Array<boolean>(points.length).fill(false);
  let least = Infinity;
  let former: { x: number; y: number } | undefined;
  for (const loss of losses) {
    // Of several that are the same all are on it or none.
    const isSame = former !== undefined && former.x === loss.x && former.y === loss.y;
    if (loss.y < least || isSame) {
      isFront[loss.n] = true;
      least = Math.min(least, loss.y);
      former = loss;
    }
  }
  return isFront;
}
