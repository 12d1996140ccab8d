// Requests to the gateway, each signed with the device's own key, which never leaves WebCrypto.

import { DeviceError } from "./errors.js";

const HMAC = { name: "HMAC", hash: "SHA-256" };

/** What the gateway refused: its sentence, its status, and the rest of its answer. */
export class Refusal extends DeviceError {
  constructor(status, answer) {
    super(answer.error ?? `The gateway answered ${status} without a reason: ask its operator.`);
    this.status = status;
    this.answer = answer;
  }
}

/** The gateway cannot be reached at the moment; what was asked can be asked again. */
export class Unreachable extends DeviceError {}

export function hex(bytes) {
  return Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export async function sha256(bytes) {
  return hex(await crypto.subtle.digest("SHA-256", bytes));
}

/** A new key: its bytes, which are sent once, and the key that signs and cannot be read. */
export async function makeKey() {
  if (!globalThis.crypto?.subtle) {
    throw new DeviceError("This page is not served over HTTPS, so the browser gives it no keys: open its https address.");
  }
  const bytes = crypto.getRandomValues(new Uint8Array(32));
  return { bytes: hex(bytes), key: await crypto.subtle.importKey("raw", bytes, HMAC, false, ["sign"]) };
}

async function answered(method, path, headers, body, signal) {
  let response;
  try {
    response = await fetch(path, { method, headers, body, signal, cache: "no-store", redirect: "error" });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable("The gateway cannot be reached: this device tries again by itself.", error);
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  throw new Refusal(response.status, answer);
}

/** The answer to an enrolment, which no key signs yet. */
export async function enrol(token, key, name) {
  const body = JSON.stringify({ token, key, ...(name && { name }) });
  const headers = { "content-type": "application/json" };
  return (await answered("POST", "/v1/enrol", headers, body)).json();
}

export class Gateway {
  #device;
  #key;

  constructor(device, key) {
    this.#device = device;
    this.#key = key;
  }

  /** The response to a signed request; path: with its query, exactly as it is sent. */
  async ask(method, path, body, signal) {
    const content = body ?? new Uint8Array(0);
    const time = String(Math.floor(Date.now() / 1000));
    const nonce = hex(crypto.getRandomValues(new Uint8Array(16)));
    const text = [method, location.host, path, time, nonce, await sha256(content)].join("\n");
    const signature = hex(await crypto.subtle.sign("HMAC", this.#key, new TextEncoder().encode(text)));
    const headers = {
      "fedrows-device": this.#device,
      "fedrows-time": time,
      "fedrows-nonce": nonce,
      "fedrows-signature": signature,
    };
    if (body) headers["content-type"] = "application/octet-stream";
    return answered(method, path, headers, method === "GET" ? undefined : content, signal);
  }

  async json(method, path, body, signal) {
    return (await this.ask(method, path, body, signal)).json();
  }

  /** All bytes of a file that may be broken off: what came is kept, and the rest is asked for. */
  async download(path, size, signal) {
    const bytes = new Uint8Array(size);
    let at = 0;
    for (let tries = 0; at < size; tries++) {
      try {
        const response = await this.ask("GET", `${path}?offset=${at}`, undefined, signal);
        for await (const piece of pieces(response)) {
          if (at + piece.length > size) throw new DeviceError("The gateway sent more than it had announced: reload this page.");
          bytes.set(piece, at);
          at += piece.length;
        }
        if (at < size) throw new Unreachable("The gateway broke off: this device tries again by itself.");
      } catch (error) {
        if (!(error instanceof Unreachable) || tries >= 3) throw error;
      }
    }
    return bytes;
  }
}

async function* pieces(response) {
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } catch (error) {
    if (error?.name === "AbortError") throw error;
    throw new Unreachable("The connection to the gateway broke: this device tries again by itself.", error);
  }
}
