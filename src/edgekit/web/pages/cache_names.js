// Converts between the names of cache types ("q8_0 + q4_0") and an engine's flags.

import { engineNamed } from "./engines.js";

/** The cache types of an engine, its default first. */
export const cacheTypes = (name) => engineNamed(name)?.cache.types ?? [];

/** The flags for "q8_0 + q4_0"; an engine with one flag for K and V has a single name. */
export function cacheFlags(type, name) {
  const { keys, unit, also } = engineNamed(name).cache;
  const values = type.split(" + ").map((one) => (one.endsWith(unit) ? one.slice(0, one.length - unit.length) : one));
  return { ...Object.fromEntries(keys.map((key, at) => [key, values[at] ?? values[0]])), ...also };
}

/** The flag for V given that for K, and the other way round; null if one flag sets both. */
export function otherHalf(key, name) {
  const keys = engineNamed(name)?.cache.keys ?? [];
  return keys.length === 2 && keys.includes(key) ? keys.find((one) => one !== key) : null;
}

/** The `about` of an error for models that need the same cache type for K and V. */
export const ONE_TYPE = "cache_types";

/** The name of the cache type in the settings, as curves have it. */
export function cacheName(settings) {
  const cache = engineNamed(settings.engine)?.cache;
  if (!cache) return "";
  const values = cache.keys.length ? cache.keys.map((key) => settings.value(key) ?? cache.default) : [cache.default];
  return [...new Set(values)].map((value) => `${value}${cache.unit}`).join(" + ");
}
