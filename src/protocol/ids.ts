// Ids that the node makes are UUIDs of version 7 whose free 74 bits hold the event's position, so that an id finds its event
// without an index: 48 bits of storedAt, 50 of offset, 10 of partition, 14 of salt (random per block, so that ids of two nodes
// or of two incarnations of a topic differ). As text:
//
//   tttttttt-tttt-7ooo-vooo-oooooopppsss     o: 12 bits, 14 behind the two of the variant v, 24; p and s: 10 + 14 bits
//
// A parsed position is a hint: it counts only if the stored record has that id.

export const offsetMax = 2 ** 50 - 1;
export const idPartitionMax = 2 ** 10 - 1;
export const saltMax = 2 ** 14 - 1;
export const idTimeMax = 2 ** 48 - 1;

export interface IdParts {
  readonly storedAt: number;
  readonly offset: number;
  readonly partition: number;
  readonly salt: number;
}

const hex2 = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0"));

function hex4(value: number): string {
  return hex2[(value >> 8) & 0xff] + hex2[value & 0xff];
}

/** The first 14 characters: they are the same for a whole block, so a reader of many events makes them once. */
export function idTimePart(storedAt: number): string {
  const high = Math.floor(storedAt / 0x10000);
  return `${hex4(high >>> 16)}${hex4(high)}-${hex4(storedAt % 0x10000)}-`;
}

export function makeId(storedAt: number, offset: number, partition: number, salt: number): string {
  return idTimePart(storedAt) + idPositionPart(offset, partition, salt);
}

export function idPositionPart(offset: number, partition: number, salt: number): string {
  const high = Math.floor(offset / 2 ** 24);
  // Bitwise operators take the low 32 bits of a number, which is what is wanted of an offset of 50.
  const tail = ((partition & idPartitionMax) << 14) | (salt & saltMax);
  return `${hex4(0x7000 | (Math.floor(high / 2 ** 14) & 0xfff))}-${hex4(0x8000 | (high & 0x3fff))}-${
    hex2[(offset >> 16) & 0xff]
  }${hex4(offset)}${hex2[tail >> 16]}${hex4(tail)}`;
}

/** Undefined unless the text has exactly the form that `makeId` gives, in lower case. */
export function parseId(id: string): IdParts | undefined {
  if (id.length !== 36) return undefined;
  if (
    id.charCodeAt(8) !== dash ||
    id.charCodeAt(13) !== dash ||
    id.charCodeAt(18) !== dash ||
    id.charCodeAt(23) !== dash
  ) {
    return undefined;
  }
  const time = hexAt(id, 0, 8) * 0x10000 + hexAt(id, 9, 13);
  const versioned = hexAt(id, 14, 18);
  const variant = hexAt(id, 19, 23);
  const low = hexAt(id, 24, 30);
  const tail = hexAt(id, 30, 36);
  // A digit that is none makes its number NaN, and so the sum.
  if (Number.isNaN(time + versioned + variant + low + tail)) return undefined;
  if (versioned >> 12 !== 7 || variant >> 14 !== 2) return undefined;
  return {
    storedAt: time,
    offset: (versioned & 0xfff) * 2 ** 38 + (variant & 0x3fff) * 2 ** 24 + low,
    partition: tail >> 14,
    salt: tail & saltMax,
  };
}

const dash = 0x2d;

function hexAt(text: string, from: number, to: number): number {
  let value = 0;
  for (let i = from; i < to; i++) {
    const char = text.charCodeAt(i);
    let digit: number;
    if (char >= 0x30 && char <= 0x39) digit = char - 0x30;
    else if (char >= 0x61 && char <= 0x66) digit = char - 0x57;
    else return Number.NaN;
    value = value * 16 + digit;
  }
  return value;
}
