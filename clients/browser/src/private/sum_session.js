// A device's side of a secure sum: fedrows/privacy/session.py, message for message, with an early list.
//
//   keys    two fresh public keys and a commitment to its self mask
//   shares  shares of its two secrets, a box for each peer
//   masked  vector + self mask ± a mask for each peer, and its signature under the list of all
//   agreed  its signature under the list of those who are in the sum, if somebody has dropped out
//   opened  one share per peer: of the self mask if it is in the sum, of its key if it is not
//
// Whatever does not fit is refused with an error, and the device takes no further part in that sum.

import { DeviceError } from "../errors.js";
import { joined } from "../wire.js";
import {
  AgreementKey, KEY, SIGNATURE, addStream, derive, digest, eight, fresh, packIds, packParts, same, seal, signedBy,
  text, unpackIds, unpackParts, unseal,
} from "./keys.js";
import { SHARE, share } from "./shamir.js";

const SECOND = text("fedrows another list of survivors ");

export class SumSession {
  #context;
  #adverts = new Map(); // peer → {body, sealing, masking}
  #pairs = new Map();
  #held = new Map(); // peer → [share of its seed, share of its masking key]
  #signedAll = false;
  #signedOther = false;
  #opened = false;

  /** me: its number; node: its SigningKey; registry: Map of number → public key; note: for all peers, sealed. */
  static async begin(terms, me, node, registry, note = new Uint8Array(0), random = fresh) {
    const keys = terms.cohort.map((one) => String(registry.get(one)));
    if (new Set(keys).size < keys.length || keys.includes("undefined") || !same(registry.get(me) ?? [], node.public)) {
      throw new DeviceError("Two parties of a sum have one key, or this device is not among them: it takes no part.");
    }
    const its = Object.assign(new SumSession(), { terms, me, node, registry, random, notes: new Map([[me, note]]), survivors: [] });
    its.#context = terms.parties;
    its.sealing = await AgreementKey.of(random(KEY));
    its.masking = await AgreementKey.of(random(KEY));
    its.seed = random(KEY);
    its.advert = joined([its.sealing.public, its.masking.public, await digest(text("fedrows self mask"), its.seed)]);
    return its;
  }

  /** The secret that this device and a peer share for one purpose. */
  async key(peer, purpose) {
    if (!this.#pairs.has(peer)) {
      const half = peer === this.me ? this.sealing.public : this.#adverts.get(peer).sealing;
      const shared = await this.sealing.agree(half, joined([text("pair"), this.terms.parties]));
      if (!shared) throw this.#wrong(`shows a key of party ${peer} that hides nothing`);
      this.#pairs.set(peer, shared);
    }
    return derive(this.#pairs.get(peer), joined([text(purpose), this.#context]));
  }

  async sign(phase, body) {
    return joined([body, await this.node.sign(await this.#signedPart(phase, this.me, body))]);
  }

  /** The body of a peer's message; refused if the peer has not signed it. */
  async check(phase, sender, message) {
    const key = this.registry.get(sender);
    const body = message.slice(0, -SIGNATURE);
    const good = key && message.length >= SIGNATURE;
    if (!good || !(await signedBy(key, message.slice(-SIGNATURE), await this.#signedPart(phase, sender, body)))) {
      throw this.#wrong(`brings a message of phase ${phase} that party ${sender} has not signed`);
    }
    return body;
  }

  /** The message of phase keys. */
  async advertise() {
    return this.sign("keys", this.advert);
  }

  /** The message of phase shares; the answer shows everybody's keys. */
  async share(answer) {
    const [idsPart, digests, ...adverts] = this.#parts(answer, 2);
    const ids = this.#ids(idsPart);
    const { terms, me } = this;
    if (digests.length !== KEY * ids.length || !ids.every((one) => terms.cohort.includes(one))) {
      throw this.#wrong("shows keys of others than the cohort");
    }
    if (ids.length < terms.threshold) throw this.#wrong(`shows ${ids.length} parties, below ${terms.threshold}`);
    const digestOf = (one) => digests.slice(KEY * ids.indexOf(one), KEY * (ids.indexOf(one) + 1));
    if (!ids.includes(me) || !same(digestOf(me), await digest(this.advert))) {
      throw this.#wrong("shows another key of this device than its own");
    }
    this.clients = ids;
    this.view = await digest(idsPart, digests);
    this.openers = await terms.drawOpeners(ids, this.view);
    const peers = ids.filter((one) => one !== me);
    if (adverts.length !== peers.length) throw this.#wrong("does not show the keys of this device's peers");
    for (const [i, peer] of peers.entries()) {
      const body = await this.check("keys", peer, adverts[i]);
      if (body.length !== 3 * KEY || !same(await digest(body), digestOf(peer))) {
        throw this.#wrong(`has other keys of party ${peer} than those that all were told of`);
      }
      this.#adverts.set(peer, { sealing: body.slice(0, KEY), masking: body.slice(KEY, 2 * KEY) });
    }
    const seeds = share(this.seed, terms.threshold, ids, this.random);
    const keys = share(this.masking.secret, terms.threshold, ids, this.random);
    this.#held.set(me, [seeds.get(me), keys.get(me)]);
    const boxes = [];
    for (const peer of peers) {
      const content = packParts(seeds.get(peer), keys.get(peer), this.notes.get(me));
      boxes.push(await seal(await this.key(peer, `box ${me}`), content, await this.#about(me, peer), this.random));
    }
    return this.sign("shares", packParts(...boxes));
  }

  /** Takes the boxes that were sealed for this device; then its vector may be made with what they brought. */
  async receive(answer) {
    const [idsPart, ...boxes] = this.#parts(answer, 1);
    const ids = this.#ids(idsPart);
    if (ids.length !== boxes.length || !ids.every((one) => this.#adverts.has(one))) {
      throw this.#wrong("brings boxes of others than this device's peers");
    }
    for (const [i, peer] of ids.entries()) {
      const content = await unseal(await this.key(peer, `box ${peer}`), boxes[i], await this.#about(peer, this.me));
      const parts = content && unpackParts(content);
      if (parts?.length !== 3 || parts[0].length !== SHARE || parts[1].length !== SHARE) {
        throw this.#wrong(`brings a box of party ${peer} that cannot be opened`);
      }
      this.#held.set(peer, [parts[0], parts[1]]);
      this.notes.set(peer, parts[2]);
    }
    if (this.#held.size < this.terms.threshold) {
      throw this.#wrong(`leaves ${this.#held.size} holders of this device's shares, below ${this.terms.threshold}`);
    }
    const missing = this.openers.find((one) => !this.#held.has(one));
    if (missing !== undefined) throw this.#wrong(`leaves out opener ${missing}`);
    this.#context = this.terms.context;
  }

  /** The message of phase masked. vector: typed words, which are not changed. */
  async mask(vector) {
    const { terms, me } = this;
    if (vector.constructor !== terms.Words || vector.length !== terms.length) {
      throw new DeviceError("This device's vector has another length than the sum: reload this page.");
    }
    const words = vector.slice();
    await addStream(words, await derive(this.seed, joined([text("self"), terms.context])));
    for (const peer of this.#held.keys()) {
      if (peer === me) continue;
      const key = await this.masking.agree(this.#adverts.get(peer).masking, joined([text("mask"), terms.context]));
      if (!key) throw this.#wrong(`shows a key of party ${peer} that hides nothing`);
      await addStream(words, key, me > peer);
    }
    let early = new Uint8Array(0);
    if (this.#held.size === this.clients.length) {
      this.survivors = this.clients;
      this.#signedAll = true;
      early = await this.sign("agreed", await digest(packIds(this.survivors)));
    }
    return joined([early, await this.sign("masked", new Uint8Array(words.buffer))]);
  }

  /** Whether a message asks for a signature under another list than that of all. */
  static asksAgain(answer) {
    return same(answer.slice(0, SECOND.length), SECOND);
  }

  /** The message of phase agreed, under the list of those who are in the sum; it signs one such list. */
  async agree(answer) {
    const list = answer.slice(SECOND.length);
    const ids = this.#ids(list);
    if (this.#signedOther || this.#opened) throw this.#wrong("asks for a third list of survivors");
    if (!ids.every((one) => this.clients.includes(one)) || !ids.includes(this.me)) {
      throw this.#wrong("has a list of survivors that cannot be");
    }
    if (!ids.every((one) => this.#held.has(one))) throw this.#wrong("calls a party a survivor that sent no shares");
    if (ids.length < this.terms.threshold) throw this.#wrong(`has ${ids.length} survivors, below ${this.terms.threshold}`);
    this.#signedOther = true;
    this.survivors = ids;
    return this.sign("agreed", await digest(list));
  }

  /** The message of phase opened; the answer shows what the peers have signed. */
  async open(answer) {
    const [idsPart, ...messages] = this.#parts(answer, 1);
    const ids = this.#ids(idsPart);
    if (this.#opened || !(this.#signedAll || this.#signedOther)) throw this.#wrong("asks for shares out of turn");
    if (ids.length !== messages.length || !ids.every((one) => this.#held.has(one) && this.survivors.includes(one))) {
      throw this.#wrong("shows signatures of others than this device's peers");
    }
    const wanted = await digest(packIds(this.survivors));
    for (const [i, peer] of ids.entries()) {
      if (!same(await this.check("agreed", peer, messages[i]), wanted)) throw this.#wrong(`shows another list of survivors, signed by party ${peer}`);
    }
    const signers = new Set([...ids, this.me]).size;
    if (signers < this.terms.threshold) throw this.#wrong(`shows ${signers} signatures under the list of survivors, below ${this.terms.threshold}`);
    this.#opened = true; // let go of once, and never of both kinds
    const held = [...this.#held].sort(([a], [b]) => a - b);
    this.#held = new Map();
    const shares = held.map(([one, [seed, key]]) => (this.survivors.includes(one) ? seed : key));
    return this.sign("opened", joined(shares));
  }

  async #signedPart(phase, sender, body) {
    return digest(text("fedrows message"), this.#context, text(phase), eight(sender), body);
  }

  /** What a box is bound to, the list of all clients and their keys included. */
  async #about(sender, receiver) {
    return digest(this.terms.parties, this.view, packIds([sender, receiver]));
  }

  #parts(answer, least) {
    const parts = unpackParts(answer);
    if (!parts || parts.length < least) throw this.#wrong("is cut short");
    return parts;
  }

  #ids(part) {
    const ids = unpackIds(part);
    if (!ids) throw this.#wrong("has a list of parties out of order");
    return ids;
  }

  #wrong(what) {
    return new DeviceError(`The gateway's message in a private sum ${what}: this device leaves the round.`);
  }
}
