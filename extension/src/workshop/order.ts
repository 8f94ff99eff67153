/** The order of tiles: by who needs help, but never under somebody's pointer. */

/**
 * In which order to show `wanted`, which comes sorted. While it `isHeld`, what is shown stays where it is: who left goes,
 * who came is appended.
 */
export function arrange(shown: readonly string[], wanted: readonly string[], isHeld: boolean): string[] {
  if (!isHeld) {
    return [...wanted];
  }
  const there = new Set(wanted);
  const before = new Set(shown);
  return [...shown.filter(key => there.has(key)), ...wanted.filter(key => !before.has(key))];
}

/** Whether the order that is held differs from the one that is due. */
export function isStale(shown: readonly string[], wanted: readonly string[]): boolean {
  return shown.length !== wanted.length || shown.some((key, place) => key !== wanted[place]);
}
