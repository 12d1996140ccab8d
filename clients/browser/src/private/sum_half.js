// One secure sum from a device's first message to its last, one request at a time.
//
// A request of a phase that has been answered gets the same answer again, for an upload may break off. Any
// other request out of turn ends the device's part: two answers from one state could show what masks hide.

import { DeviceError } from "../errors.js";
import { KEY, digest, fresh, same } from "./keys.js";
import { SumSession } from "./sum_session.js";

export class SumHalf {
  #begun;
  #part;
  #plan;
  #phase = -1; // the newest that was answered; a phase may ask others only
  #last = null; // {name, reply}: of the newest phase
  #state = "keys";

  /** part: gives the vector, once the session has what peers have sealed; plan: Openings, or null in a plain sum. */
  constructor(terms, me, node, registry, part, plan, random = fresh) {
    const note = plan ? random(KEY) : new Uint8Array(0);
    this.#begun = SumSession.begin(terms, me, node, registry, note, random);
    this.#begun.catch(() => {}); // whoever asks for a reply is told
    this.#part = part;
    this.#plan = plan;
    this.sent = null; // at the end: which pieces count as sent
  }

  /** The answer to the request of a phase; null if it asks for none. */
  async reply(phase, request) {
    const name = await digest(request);
    if (phase === this.#phase && this.#last && same(this.#last.name, name)) return this.#last.reply;
    if (!(phase > this.#phase) || this.#state === "over") {
      this.#state = "over";
      throw new DeviceError("The gateway asks for a part of a private sum out of turn: this device leaves the round.");
    }
    const state = this.#state;
    [this.#phase, this.#last, this.#state] = [phase, null, "over"]; // unless this step succeeds
    const [reply, next] = await this.#step(state, request);
    this.#last = { name, reply };
    this.#state = next;
    return reply;
  }

  async #step(state, request) {
    const session = await this.#begun;
    switch (state) {
      case "keys":
        return [await session.advertise(), "shares"];
      case "shares":
        return [await session.share(request), "masked"];
      case "masked":
        await session.receive(request);
        return [await session.mask(await this.#part(session)), "signed"];
      case "signed":
        if (SumSession.asksAgain(request)) return [await session.agree(request), "agreed"];
        return [await session.open(request), "opened"];
      case "agreed":
        return [await session.open(request), "opened"];
      case "opened":
        if (this.#plan && session.openers.includes(session.me)) return [await this.#plan.letGo(session, request), "proof"];
        return this.#end(session, request);
      default:
        return this.#end(session, request);
    }
  }

  async #end(session, request) {
    if (this.#plan) this.sent = await this.#plan.sent(session, request);
    return [null, "over"];
  }
}
