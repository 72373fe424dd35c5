export const encoder = new TextEncoder();
// Without ignoreBOM a decoder takes U+FEFF away from the front of a text, and a key would come back as another key.
export const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
/** Marked, so that a bundle for browsers can do without it. */
export const strictDecoder = /* @__PURE__ */ new TextDecoder("utf-8", { ignoreBOM: true, fatal: true });

/** How many bytes a text has in UTF-8, or -1 where it has half a surrogate pair and so no such form. */
export function utf8Bytes(text: string): number {
  let bytes = text.length;
  for (let i = 0; i < text.length; i++) {
    const char = text.charCodeAt(i);
    if (char < 0x80) continue;
    if (char < 0x800) {
      bytes += 1;
    } else if (char < 0xd800 || char > 0xdfff) {
      bytes += 2;
    } else {
      // Two units of text become four bytes.
      const next = i + 1 < text.length ? text.charCodeAt(i + 1) : 0;
      if (char > 0xdbff || next < 0xdc00 || next > 0xdfff) return -1;
      bytes += 2;
      i++;
    }
  }
  return bytes;
}
