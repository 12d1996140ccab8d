// Counter-based randomness: a draw is a function of (seed, round, client, use, step, position).
//
// The same functions as fedrows/seeds.py, bit for bit. Words are BigInts from 0 to 2⁶⁴ − 1.

const GOLDEN = 0x9e3779b97f4a7c15n;
const FIRST = 0xbf58476d1ce4e5b9n;
const SECOND = 0x94d049bb133111ebn;
const LOW_48 = (1n << 48n) - 1n;

// The uses of randomness that a device has; each has streams of its own.
export const BATCH = 1;
export const SHUFFLE = 2;
export const STEP = 7;

const word = (x) => BigInt.asUintN(64, x);

/** A hash of a word, in which each bit of the input flips half of the output's. */
export function mix(x) {
  x = word((x ^ (x >> 30n)) * FIRST);
  x = word((x ^ (x >> 27n)) * SECOND);
  return x ^ (x >> 31n);
}

/** One key for a tuple of whole numbers such as (seed, use, round). */
export function key(...numbers) {
  let result = 0n;
  for (const number of numbers) {
    result = mix(word(result + word(BigInt(number)) * GOLDEN + GOLDEN));
  }
  return result;
}

/** 64 random bits for a key and a counter. */
export function bits(stream, counter) {
  return mix(word(stream + BigInt(counter) * GOLDEN));
}

/** The key of a client's own stream for one use in one round. */
export function clientKey(seed, use, round, client) {
  return bits(key(seed, use, round), client);
}

/** The counter of a position in a step. */
export function counter(step, position) {
  return (BigInt(step) << 32n) + BigInt(position);
}

/** A whole number from 0 to limit − 1, from 64 random bits. */
export function below(random, limit) {
  const fraction = Number((random >> 16n) & LOW_48) * 2 ** -48;
  return Math.trunc(fraction * limit);
}
