// What a device asks of private runs, whatever its gateway says: a node's policy (fedrows/flower/node/policy.py), for a
// device. Nothing of it comes from the gateway. The owner of a device may ask for less, or for no run in the clear.
//
// In the storage are, so that neither another tab nor a clock that is set back begins anew
//   heat counts   {made, count}: how often heat was counted over the present data
//   sums          {day, union, update}: how many sums of each use were begun on the newest day (UTC)

import { DeviceError } from "../errors.js";

export const STRICT = {
  privateOnly: false, // whether the device takes part in no run in the clear
  contributors: 2, // fewest devices that must contribute to a row that is opened
  openers: 2,
  colluding: 1, // devices that may collude with the gateway, at least
  share: 2 / 3, // of a sum's devices that must stay to the end
  heatCounts: 3, // over one version of the data
  sumsPerDay: 5000, // of each use
};
const MOST_PARTIES = 2 ** 16 - 1;
const MOST_FRACTION = 64;
const KEY = /^[0-9a-f]{64}$/;

const isCount = (x, least = 0) => Number.isSafeInteger(x) && x >= least;
const isText = (x) => typeof x === "string";
const isAbove0 = (x) => typeof x === "number" && Number.isFinite(x) && x > 0;
const isList = (list, is) => Array.isArray(list) && list.every((one) => one !== null && typeof one === "object" && is(one));

/** Whether the facts of a sum's terms are of the kinds that they must be of. */
function makesSense(about) {
  const { parties, tables, use } = about;
  const fits =
    Array.isArray(parties) && parties.length <= MOST_PARTIES && parties.every((key) => isText(key) && KEY.test(key)) &&
    isList(tables, ({ name, rows, width }) => isText(name) && isCount(rows) && isCount(width, 1)) &&
    [use, about.sum, about.run].every(isText) && [about.round, about.threshold, about.colluding].every((x) => isCount(x));
  return fits && (use !== "update" || isUpdate(about));
}

function isUpdate({ openers, minimum, range, lr, losses, dense, coding, parties }) {
  const shapes = isList(dense, ({ name, shape }) => isText(name) && Array.isArray(shape) && shape.every((x) => isCount(x)));
  const rates = isCount(openers) && isCount(minimum) && isAbove0(range) && Number.isFinite(lr) && typeof losses === "boolean";
  const bits = coding?.bits;
  if (!shapes || !rates || minimum > parties.length || !isAbove0(coding?.range) || ![32, 64].includes(bits)) return false;
  // No sum may wrap around; and no number is too large for a word, or who falls silent would tell of it.
  const { fraction } = coding;
  return isCount(fraction) && fraction <= MOST_FRACTION && parties.length * (coding.range * 2 ** fraction + 1) < 2 ** (bits - 1);
}

export class DevicePolicy {
  #storage;

  /** given: what the device's owner asks for instead. */
  constructor(storage, given = {}) {
    this.#storage = storage;
    Object.assign(this, STRICT, given);
  }

  /** Fails if a run is in the clear and this device takes part in private ones only, as it does from its first one on. */
  async checkRun(secret) {
    if (secret || !(this.privateOnly || (await this.#storage.get("signing")))) return;
    throw new DeviceError("The gateway's run is in the clear, and this device takes part in private runs only: enrol another device if its data may be shown.");
  }

  /** Fails if a sum's terms make no sense, or ask for less than this device wants. about: their facts. */
  check(about) {
    if (!makesSense(about)) throw new DeviceError("The gateway's terms of a private sum make no sense: this device takes no part.");
    const asked = [["colluding", about.colluding, this.colluding], ["share", about.threshold / about.parties.length, this.share]];
    if (about.use === "update") asked.push(["contributors", about.minimum, this.contributors], ["openers", about.openers, this.openers]);
    for (const [name, found, least] of asked) {
      if (!(found >= least - 1e-9)) {
        throw new DeviceError(`The gateway's private sum has ${name} ${+found.toFixed(3)}, and this device asks for ${+least.toFixed(3)}: this device takes no part.`);
      }
    }
  }

  /** Uses up what a sum takes of what the policy allows; fails if nothing is left. made: names the version of the data. */
  async use(use, made = "") {
    if (use === "heat") {
      const counted = await this.#storage.get("heat counts");
      const count = counted?.made === made ? counted.count : 0;
      if (!(count < this.heatCounts)) {
        throw new DeviceError(`Heat was counted ${count} times over this device's data: open this page with ?heat-counts=N, above ${count}, if it may be counted again.`);
      }
      await this.#storage.keep({ "heat counts": { made, count: count + 1 } });
      return;
    }
    const [today, kept] = [new Date().toISOString().slice(0, 10), await this.#storage.get("sums")];
    const sums = kept && kept.day >= today ? kept : { day: today };
    const count = sums[use] ?? 0;
    if (!(count < this.sumsPerDay)) throw new DeviceError(`This device has begun ${count} private sums of one use today: this device takes no part until tomorrow.`);
    await this.#storage.keep({ sums: { ...sums, [use]: count + 1 } });
  }
}
