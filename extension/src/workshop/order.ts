/** The order of tiles: those who need help first, but unchanged while the user points at one. */

/**
 * Return the order in which to show `wanted`, which is sorted. If `isHeld`, the tiles that are shown keep their order:
 * those that left are removed, new ones are appended.
 */
export function arrange(shown: readonly string[], wanted: readonly string[], isHeld: boolean): string[] {
  if (!isHeld) {
    return [...wanted];
  }
  const there = new Set(wanted);
  const before = new Set(shown);
  return [...shown.filter(key => there.has(key)), ...wanted.filter(key => !before.has(key))];
}

/** Whether the order that is shown differs from the one wanted. */
export function isStale(shown: readonly string[], wanted: readonly string[]): boolean {
  return shown.length !== wanted.length || shown.some((key, place) => key !== wanted[place]);
}
