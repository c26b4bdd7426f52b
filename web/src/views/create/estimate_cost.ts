/** What slot-time costs where a pool's instances have prices. */

interface Priced {
  slot_price_per_hour: number | null;
}

/**
 * The dollars that so many seconds of slots cost on the instances of the cheapest slots; null where
 * none has a price.
 */
export function slotCost(slotSeconds: number, offerings: readonly Priced[]): number | null {
  const prices = offerings.flatMap(({ slot_price_per_hour: price }) => (price === null ? [] : [price]));
  return prices.length ? (slotSeconds / 3600) * Math.min(...prices) : null;
}
