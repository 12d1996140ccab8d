// The page of one device: it enrols, trains, and shows what travels and what it would recommend.
//
//   /                           a device of one's own: a token and a file of examples begin it
//   /?program=SHA256            the same, for the program alone whose manifest.json has this sum
//   /?private=1                 the same, for private runs alone
//   /?contributors=1            the same, where rows of fewer than 2 devices may be opened in private runs
//   /?heat-counts=9             the same, where heat may be counted more than 3 times over the same data
//   /?device=NAME&demo=FOLDER   a device of the demo, which finds both in FOLDER/NAME.json; panel=1: in a frame

import { DataError, DeviceError } from "./errors.js";
import { columnsOf } from "./examples.js";
import { Device } from "./session.js";
import { View } from "./view.js";

const query = new URLSearchParams(location.search);
const name = query.get("device") ?? "own";
const view = new View(document);

/** What is in the demo's folder for this device; nothing is asked for once it is stored. */
async function demoFile() {
  const folder = query.get("demo");
  if (!/^[\w-]+$/.test(folder) || !/^[\w-]+$/.test(name)) throw new DeviceError("This address is not one of the demo: open the page that the demo prints.");
  const response = await fetch(`${folder}/${name}.json`);
  if (!response.ok) throw new DeviceError("The demo has no such device: open the page that the demo prints.");
  return response.json();
}

async function begin(device, { token, name: called, given }) {
  await device.give(given);
  await device.enrol(token, called);
}

/** Waits for somebody to fill in the form; a device that is enrolled needs no token. */
function form(device, enrolled = false) {
  const field = document.getElementById("token");
  field.required = !enrolled;
  field.closest("label").hidden = enrolled;
  return new Promise((resolve) => {
    view.form.hidden = false;
    view.form.onsubmit = async (event) => {
      event.preventDefault();
      try {
        view.trouble(null);
        const token = field.value.trim();
        const given = JSON.parse(await document.getElementById("file").files[0].text());
        if (!given?.ids || !Array.isArray(given.label)) throw new DeviceError("The file has no ids and labels: see the page on devices in the documentation.");
        await begin(device, { token, name: query.get("device"), given });
        view.form.hidden = true;
        resolve(given);
      } catch (error) {
        view.trouble(error instanceof SyntaxError ? "The file is not JSON: choose another." : error.message);
      }
    };
  });
}

/** What the device thinks of the examples that it is to rank, with its own rows of this round. */
async function ranked(device, { given, index, result }) {
  if (!given.candidates || device.program.manifest.labels !== "binary") return;
  const ids = given.candidates.ids;
  const size = Object.values(ids)[0].length;
  const examples = columnsOf({ ids, label: new Array(size).fill(1) }, device.program.manifest, index);
  const likely = await device.program.likely({ ...result, examples, index });
  view.ranking(likely);
  await device.storage.keep({ ranking: likely });
}

async function main() {
  const policy = { privateOnly: query.has("private") };
  if (query.has("contributors")) policy.contributors = Number(query.get("contributors"));
  if (query.has("heat-counts")) policy.heatCounts = Number(query.get("heat-counts"));
  const device = await Device.open(name, { pinned: query.get("program") ?? undefined, policy });
  if (!(await device.identity())) {
    if (query.has("demo")) await begin(device, await demoFile());
    else await form(device);
  }
  const identity = await device.identity();
  const given = await device.storage.get("given");
  view.show(query.has("demo") ? given.called ?? identity.name : identity.name, given);
  view.history(await device.history());
  view.ranking(await device.storage.get("ranking"));
  device.addEventListener("news", async ({ detail }) => {
    view.news(detail);
    parent.postMessage({ device: name, kind: detail.kind, round: detail.round, down: detail.down, up: detail.up }, location.origin);
    if (detail.kind === "program") view.program(detail.manifest);
    if (detail.kind === "trained") ranked(device, detail).catch(fail);
    if (detail.kind === "sent") view.history(await device.history());
  });
  for (;;) {
    try {
      return await device.run();
    } catch (error) {
      if (!(error instanceof DataError)) throw error;
      view.trouble(`${error.message} Choose another file.`);
      view.state("stop", "stopped");
      view.show(identity.name, await form(device, true));
    }
  }
}

function fail(error) {
  console.error(error);
  view.trouble(error instanceof DeviceError ? error.message : "This page met an error that it does not know: reload it.");
  view.state("stop", "stopped");
}

main().catch(fail);
