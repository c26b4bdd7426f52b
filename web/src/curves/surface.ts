/** A smooth surface over a plane of points, for contours. */

/** A point of the unit square with a value. */
export interface SurfacePoint {
  x: number;
  y: number;
  value: number;
}

/** The cells along each side of a surface. */
export const SURFACE_SIZE = 40;
// The standard deviation of the blur for one point, and the least one, in sides of the square.
const [WIDEST, NARROWEST] = [0.3, 0.04];
// A cell with less weight than a point at this distance, in standard deviations, is empty.
const REACH = 2.5;

/**
 * The mean value around the center of each cell, row by row from the lowest y; null far from all
 * points. Nearer points count more (kernel regression, Nadaraya and Watson 1964). The more points,
 * the narrower the neighbourhood.
 */
export function smoothSurface(points: readonly SurfacePoint[], size = SURFACE_SIZE): (number | null)[] {
  const sums = new Float64Array(size * size);
  const counts = new Float64Array(size * size);
  const cellOf = (place: number) => Math.min(size - 1, Math.max(0, Math.floor(place * size)));
  for (const { x, y, value } of points) {
    const cell = cellOf(y) * size + cellOf(x);
    sums[cell]! += value;
    counts[cell]! += 1;
  }
  // Silverman's rule for two dimensions: the width shrinks with the sixth root of the number.
  const width = size * Math.max(NARROWEST, WIDEST * Math.max(1, points.length) ** (-1 / 6));
  const [values, weights] = [blur(sums, size, width), blur(counts, size, width)];
  const least = Math.exp(-(REACH ** 2) / 2);
  return Array.from(values, (value, cell) => (weights[cell]! < least ? null : value / weights[cell]!));
}

/** The Gaussian blur of a square grid, along rows and then along columns. */
function blur(grid: Float64Array, size: number, width: number): Float64Array {
  const kernel = Float64Array.from({ length: size }, (_, n) => Math.exp(-((n / width) ** 2) / 2));
  const along = (from: Float64Array, step: number, across: number): Float64Array => {
    const to = new Float64Array(from.length);
    for (let line = 0; line < size; line += 1) {
      for (let source = 0; source < size; source += 1) {
        const value = from[line * across + source * step]!;
        if (value === 0) continue;
        for (let n = 0; n < size; n += 1) to[line * across + n * step]! += value * kernel[Math.abs(n - source)]!;
      }
    }
    return to;
  };
  return along(along(grid, 1, size), size, 1);
}
