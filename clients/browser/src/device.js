// What an app of its own imports: a device, its program, and the errors that it shows.

export { DeviceError } from "./errors.js";
export { Refusal, Unreachable } from "./gateway.js";
export { Program } from "./program.js";
export { Device } from "./session.js";
export { columnsOf, indexOf } from "./examples.js";
