// What all parties of a secure sum agree on: fedrows/privacy/terms.py.

import { DeviceError } from "../errors.js";
import { joined } from "../wire.js";
import { before, digest, eight, packIds, text } from "./keys.js";

const FEWEST = 3; // parties that a device's sum is opened with, at least
export const WORDS = { uint32: Uint32Array, uint64: BigUint64Array };

export class SumTerms {
  /** given: {name, cohort, threshold, length, word, colluding, openers, about}; refused where it would show too much. */
  static async of(given) {
    const terms = Object.assign(new SumTerms(), { openers: 0, about: "", ...given });
    const { cohort, threshold, colluding, openers, length, word } = terms;
    const whole = [threshold, colluding, openers, length, ...cohort].every((x) => Number.isSafeInteger(x) && x >= 0);
    const rising = cohort.every((one, i) => i === 0 || cohort[i - 1] < one);
    if (!whole || !rising || !WORDS[word]) throw new DeviceError("The gateway's terms of a sum make no sense: this device takes no part.");
    if (threshold < Math.max(FEWEST, colluding + 2) || threshold > cohort.length || 2 * threshold <= cohort.length + colluding) {
      throw new DeviceError(`The gateway would open a sum of ${cohort.length} devices with ${threshold}, which is too few: this device takes no part.`);
    }
    if (openers > cohort.length || (openers && openers <= colluding)) {
      throw new DeviceError(`The gateway's sum has ${openers} openers, too few or too many: this device takes no part.`);
    }
    // These are texts as Python writes them: all sides hash the same.
    const numbers = `(${threshold}, ${colluding}, ${openers}, True)`;
    terms.parties = await digest(text("fedrows secure sum 4"), text(terms.name), packIds(cohort), text(numbers));
    terms.context = await digest(text("fedrows vectors"), terms.parties, text(terms.about), text(`(${length}, '${word}')`));
    return terms;
  }

  get Words() {
    return WORDS[this.word];
  }

  /** The openers among the clients that advertised keys, in the order of their places. */
  async drawOpeners(clients, view) {
    if (!this.openers) return [];
    const placed = clients.map(async (one) => {
      const data = joined([text("fedrows openers"), view, eight(one)]);
      return { one, place: new Uint8Array(await crypto.subtle.digest("SHA-256", data)) };
    });
    const order = (await Promise.all(placed)).sort((a, b) => before(a.place, b.place));
    return order.slice(0, this.openers).map(({ one }) => one);
  }
}
