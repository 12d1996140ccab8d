// The device program: one local step as an ONNX file, which onnxruntime runs in WebAssembly on one thread.

import * as ort from "onnxruntime-web/wasm";
import { lookUp, positions, stepsOf } from "./batches.js";
import { DeviceError } from "./errors.js";
import { finished, occurrences } from "./finish.js";
import { sha256 } from "./gateway.js";

const FORMAT = 1; // of manifests
const RUNTIME = "ort-wasm-simd-threaded.wasm"; // lies beside this script

ort.env.wasm.numThreads = 1;
ort.env.wasm.proxy = false;
ort.env.wasm.wasmPaths = { wasm: new URL(RUNTIME, import.meta.url).href };
ort.env.logLevel = "error";

const product = (shape) => shape.reduce((total, size) => total * size, 1);

export class Program {
  #session;
  #files;

  constructor(id, manifest, session, files) {
    this.id = id;
    this.manifest = manifest;
    this.#session = session;
    this.#files = files;
  }

  /** A program from its files {name: Uint8Array}, which are checked against the manifest's sums. */
  static async load(id, files) {
    const manifest = JSON.parse(new TextDecoder().decode(files["manifest.json"]));
    if (manifest.format !== FORMAT) {
      throw new DeviceError(
        `The program has format ${manifest.format}, but this page reads ${FORMAT}: reload this page, or ask the gateway's operator to build it anew.`,
      );
    }
    const step = files["step.onnx"];
    const starts = Object.values(manifest.tables).flatMap(({ start }) => (start?.file ? [[start.file, start.sha256]] : []));
    for (const [name, sum] of [["step.onnx", manifest.step.sha256], ...starts]) {
      if (!files[name] || (await sha256(files[name])) !== sum) {
        throw new DeviceError(`The file ${name} is not the one that the manifest names: ask the gateway's operator.`);
      }
    }
    const session = await ort.InferenceSession.create(step, {
      executionProviders: ["wasm"],
      intraOpNumThreads: 1,
    });
    return new Program(id, manifest, session, files);
  }

  /** A device's rows of a local table: those that it had before, and where the others begin. */
  personal(table, ids, before) {
    const { width } = this.manifest.tables[table];
    const rows = new Float32Array(ids.length * width);
    const known = new Map(Array.from(before?.ids ?? [], (id, place) => [id, place]));
    ids.forEach((id, i) => {
      const place = known.get(id);
      const row = place === undefined ? this.#beginning(table, id) : before.rows.subarray(place * width, (place + 1) * width);
      rows.set(row, i * width);
    });
    return rows;
  }

  /** Where a row of a local table begins: as the manifest says, or in its file. */
  #beginning(table, id) {
    const { width, start } = this.manifest.tables[table];
    if (start?.row) return start.row;
    const all = start?.file && this.#files[start.file];
    if (!all) throw new DeviceError(`The program does not say where rows of ${table} begin: ask the gateway's operator to build it anew.`);
    return new Float32Array(all.slice(4 * id * width, 4 * (id + 1) * width).buffer);
  }

  /** Takes the local steps of a round from where `given` starts; nothing in it is changed. */
  async train(given) {
    const begun = performance.now();
    const { examples } = given;
    const { manifest } = this;
    if (!examples.size) throw new DeviceError("This device has no examples to train on: give it some.");
    const fixed = this.#fixed(given);
    let here = this.#start(given);
    const losses = [];
    for (const batch of positions(examples.size, manifest.plan, given.round, given.number)) {
      const feeds = { ...fixed, ...here, ...this.#batch(examples, batch) };
      if (manifest.step.inputs.count) feeds.count = tensor("float32", [losses.length + 1], []);
      const results = await this.#session.run(feeds);
      losses.push(results.loss.data[0]);
      here = Object.fromEntries(
        Object.entries(results).filter(([name]) => name.startsWith("next/")).map(([name, x]) => [name.slice(5), x]),
      );
    }
    const end = { rows: {}, dense: {} };
    for (const table of Object.keys(manifest.tables)) end.rows[table] = here[`rows/${table}`].data;
    for (const name of Object.keys(manifest.dense)) end.dense[name] = here[`dense/${name}`].data;
    const steps = stepsOf(examples.size, manifest.plan);
    const more = finished(manifest, given, end, steps);
    const occurred = manifest.occurred ? occurrences(manifest, given) : null;
    return { ...end, ...more, occurred, losses, steps, milliseconds: performance.now() - begun };
  }

  /** How likely each example's label is to be 1, for programs with binary labels.
   *
   * The step itself tells: at a learning rate of 0 it moves nothing, and its loss is −log p.
   */
  async likely(given) {
    const { examples } = given;
    const feeds = { ...this.#fixed({ ...given, lr: 0 }), ...this.#start(given) };
    if (this.manifest.step.inputs.count) feeds.count = tensor("float32", [1], []);
    const found = [];
    for (let i = 0; i < examples.size; i++) {
      const batch = { positions: Int32Array.of(i), real: null, key: 0n };
      const results = await this.#session.run({ ...feeds, ...this.#batch(examples, batch) });
      found.push(Math.exp(-results.loss.data[0]));
    }
    return found;
  }

  /** What a step changes, before the first: rows, dense tensors, and an optimiser's state of zeros. */
  #start(given) {
    const feeds = {};
    for (const [name, facts] of Object.entries(this.manifest.step.inputs)) {
      if (/^(rows|dense)\//.test(name)) feeds[name] = this.#leaf(name, given);
      if (name.startsWith("state/")) {
        const { dims } = this.#leaf(name.split("/").slice(2).join("/"), given);
        feeds[name] = tensor(facts.type, new Float32Array(product(dims)), dims);
      }
    }
    return feeds;
  }

  /** What is the same in all steps: the rate, where the round began, and what the algorithm adds. */
  #fixed(given) {
    const feeds = {};
    const sources = { start: given, sent: given.sent, kept: given.kept };
    for (const name of Object.keys(this.manifest.step.inputs)) {
      const [use, ...leaf] = name.split("/");
      if (use in sources) feeds[name] = this.#leaf(leaf.join("/"), sources[use], given);
      if (name === "lr") feeds.lr = tensor("float32", [given.lr], []);
    }
    return feeds;
  }

  /** The tensor rows/<table> or dense/<name> of a submodel; zeros where the device has none yet. */
  #leaf(name, submodel, given = submodel) {
    const [kind, ...rest] = name.split("/");
    const of = rest.join("/");
    const values = submodel?.[kind]?.[of] ?? new Float32Array(given[kind][of].length);
    if (kind === "dense") return tensor("float32", values, this.manifest.dense[of]);
    const { width } = this.manifest.tables[of];
    return tensor("float32", values, [values.length / width, width]);
  }

  #batch(examples, batch) {
    const feeds = {};
    for (const [name, facts] of Object.entries(this.manifest.step.inputs)) {
      const [use, ...rest] = name.split("/");
      const column = { ids: examples.slots, numbers: examples.numbers }[use]?.[rest.join("/")];
      if (column) {
        const { values, shape } = lookUp(column, batch.positions);
        feeds[name] = tensor(facts.type, values, shape);
      }
    }
    const count = batch.positions.length;
    const label = { values: examples.label, width: 1 };
    feeds.label = tensor(this.manifest.step.inputs.label.type, lookUp(label, batch.positions).values, [count]);
    feeds.weight = tensor("float32", this.#weights(examples, batch), [count]);
    if (this.manifest.step.inputs.key) feeds.key = tensor("int64", [batch.key], []);
    return feeds;
  }

  #weights(examples, { positions: at, real }) {
    return Float32Array.from(at, (position, i) => (real ? real[i] : 1) * (examples.weight?.[position] ?? 1));
  }
}

function tensor(dtype, values, shape) {
  if (dtype === "int64") return new ort.Tensor("int64", BigInt64Array.from(values, BigInt), shape);
  return new ort.Tensor("float32", values instanceof Float32Array ? values : Float32Array.from(values), shape);
}
