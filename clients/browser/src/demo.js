// The demo's page: every device in a frame of its own, with storage of its own, and what they do together.

const folder = new URLSearchParams(location.search).get("demo");
const at = (id) => document.getElementById(id);
const traffic = new Map(); // device → {down, up} of all rounds that this page has seen

function bytes(count) {
  if (count < 1000) return `${count} B`;
  return count < 1e6 ? `${(count / 1000).toFixed(1)} kB` : `${(count / 1e6).toFixed(2)} MB`;
}

function choose(name) {
  for (const frame of document.querySelectorAll("iframe")) frame.classList.toggle("shown", frame.name === name);
  for (const tab of document.querySelectorAll("#tabs button")) tab.setAttribute("aria-selected", String(tab.dataset.device === name));
}

function add({ name, called }) {
  const frame = document.createElement("iframe");
  frame.name = name;
  frame.title = called;
  frame.src = `index.html?device=${encodeURIComponent(name)}&demo=${encodeURIComponent(folder)}&panel=1`;
  at("frames").append(frame);
  const tab = document.createElement("button");
  Object.assign(tab, { type: "button", textContent: called });
  tab.dataset.device = name;
  tab.setAttribute("role", "tab");
  tab.addEventListener("click", () => choose(name));
  at("tabs").append(tab);
}

function news({ device, kind, round, down, up }) {
  const busy = kind === "rows" || kind === "trained";
  for (const node of document.querySelectorAll(`iframe[name="${device}"], #tabs [data-device="${device}"]`)) node.classList.toggle("busy", busy);
  if (kind !== "sent") return;
  at("round").textContent = String(round);
  const sum = traffic.get(device) ?? { down: 0, up: 0 };
  traffic.set(device, { down: sum.down + down, up: sum.up + up });
  for (const way of ["down", "up"]) {
    at(`all-${way}`).textContent = bytes([...traffic.values()].reduce((total, one) => total + one[way], 0));
  }
}

async function main() {
  const response = /^[\w-]+$/.test(folder ?? "") ? await fetch(`${folder}/demo.json`) : null;
  if (!response?.ok) {
    at("trouble").hidden = false;
    at("trouble").textContent = "This address is not one of the demo: open the page that the demo prints.";
    return;
  }
  const demo = await response.json();
  at("lede").textContent = demo.lede;
  at("devices").textContent = String(demo.devices.length);
  at("others").textContent = demo.others.toLocaleString("en");
  if (demo.live) Object.assign(at("live"), { href: demo.live, hidden: false });
  addEventListener("message", (event) => {
    if (event.origin === location.origin && /^[\w-]+$/.test(event.data?.device ?? "")) news(event.data);
  });
  demo.devices.forEach(add);
  choose(demo.devices[0].name);
}

main();
