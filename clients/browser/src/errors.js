// An error whose message is one sentence for the person in front of the page.

export class DeviceError extends Error {
  constructor(message, cause) {
    super(message, cause && { cause });
    this.name = "DeviceError";
  }
}

/** The examples do not fit the program: other examples may. */
export class DataError extends DeviceError {}
