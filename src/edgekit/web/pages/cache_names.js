// Names of cache types, as curves and changes write them <-> the flags that say them to the engine.

import { engineNamed } from "./engines.js";

/** All that can be drawn, the engine's default first. */
export const cacheTypes = (name) => engineNamed(name)?.cache.types ?? [];

/** "q8_0 + q4_0" -> both flags; engines with one flag for K and V have one name. */
export function cacheFlags(type, name) {
  const { keys, unit, also } = engineNamed(name).cache;
  const values = type.split(" + ").map((one) => (one.endsWith(unit) ? one.slice(0, one.length - unit.length) : one));
  return { ...Object.fromEntries(keys.map((key, at) => [key, values[at] ?? values[0]])), ...also };
}

/** The flag of the other half, where K and V each have one. */
export function otherHalf(key, name) {
  const keys = engineNamed(name)?.cache.keys ?? [];
  return keys.length === 2 && keys.includes(key) ? keys.find((one) => one !== key) : null;
}

/** What a refusal is about where K and V must have one cache type: some models keep one cache for both. */
export const ONE_TYPE = "cache_types";

/** What the settings say, by the name that curves have. */
export function cacheName(settings) {
  const cache = engineNamed(settings.engine)?.cache;
  if (!cache) return "";
  const values = cache.keys.length ? cache.keys.map((key) => settings.value(key) ?? cache.default) : [cache.default];
  return [...new Set(values)].map((value) => `${value}${cache.unit}`).join(" + ");
}
