// Fixed point in a ring, as fedrows/privacy/ring.py has it: word = floor(x · 2^fraction + u), right on average.

import { DeviceError } from "../errors.js";
import { KEY, fresh, stream } from "./keys.js";

/** Numbers as words of 32 or 64 bits. coding: {range, fraction, bits}. */
export async function encode(numbers, coding, random = fresh) {
  const scale = 2 ** coding.fraction;
  const coins = await stream(random(KEY), numbers.length, BigUint64Array);
  const words = coding.bits === 32 ? new Uint32Array(numbers.length) : new BigUint64Array(numbers.length);
  for (let i = 0; i < numbers.length; i++) {
    if (!(Math.abs(numbers[i]) <= coding.range)) {
      throw new DeviceError("A number of this device's update is outside of the agreed range: it leaves the round.");
    }
    const scaled = numbers[i] * scale; // exact: a power of two
    let whole = Math.floor(scaled);
    const up = Number(coins[i] >> 11n) * 2 ** -53 < scaled - whole;
    words[i] = coding.bits === 32 ? whole + up : BigInt(whole) + BigInt(up);
  }
  return words;
}

/** A random word that is not 0 for every row that is held, 0 for the others. */
export async function marks(places, count, random = fresh) {
  const words = new Uint32Array(count);
  let left = places;
  while (left.length) {
    const drawn = await stream(random(KEY), left.length, Uint32Array);
    left.forEach((place, i) => (words[place] = drawn[i]));
    left = left.filter((place) => words[place] === 0);
  }
  return words;
}
