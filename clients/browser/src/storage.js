// What a device keeps, in an IndexedDB database of its own: data, keys, personal rows, half-done work.
//
// Everything that belongs together is written in one transaction, so a tab that is closed or reloaded
// at any instant finds either what it had before or what it had afterwards.

import { DeviceError } from "./errors.js";

const THINGS = "things";

function promised(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function ended(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error ?? new Error("aborted"));
    transaction.onerror = () => reject(transaction.error);
  });
}

function abort(transaction) {
  try {
    transaction?.abort();
  } catch {
    // it has ended already
  }
}

function refused(error) {
  if (error?.name === "QuotaExceededError") {
    return new DeviceError(
      "The browser has no room left for this device, so it stopped before it lost anything: free some space, then reload this page.",
      error,
    );
  }
  return new DeviceError(
    `The browser did not store what this device must keep (${error?.name ?? "no reason given"}): allow this site to keep data, then reload this page.`,
    error,
  );
}

export class Storage {
  #database;

  constructor(database) {
    this.#database = database;
  }

  /** The storage of the device so named; two names share nothing. */
  static async open(name) {
    try {
      const request = indexedDB.open(`fedrows device ${name}`, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(THINGS);
      return new Storage(await promised(request));
    } catch (error) {
      throw refused(error);
    }
  }

  /** What was kept under a name, or undefined. */
  async get(name) {
    return promised(this.#database.transaction(THINGS).objectStore(THINGS).get(name));
  }

  /** The names of everything that is kept. */
  async names() {
    return promised(this.#database.transaction(THINGS).objectStore(THINGS).getAllKeys());
  }

  /** Keeps things and forgets others, all of it or nothing: {name: thing}, undefined to forget. */
  async keep(things) {
    let transaction;
    try {
      transaction = this.#database.transaction(THINGS, "readwrite", { durability: "strict" });
      const whole = ended(transaction);
      whole.catch(() => {}); // it is awaited below, unless a request fails before
      const store = transaction.objectStore(THINGS);
      for (const [name, thing] of Object.entries(things)) {
        if (thing === undefined) store.delete(name);
        else store.put(thing, name);
      }
      await whole;
    } catch (error) {
      abort(transaction); // or what was asked for before the failure would be kept
      throw refused(error);
    }
  }

  close() {
    this.#database.close();
  }
}
