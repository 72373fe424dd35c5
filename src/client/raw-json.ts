// A payload that is JSON text already. Published, it is stored as it is: parsing it and writing it again could change it (the digits of a
// large number, the order of members that look like numbers, one of two members with the same name).

export class RawJson {
  /** One JSON value in one line; the node checks it. */
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}
