// A connection in words, for whoever looks after the node: its number, where it comes from, and who the auth hook says it is. Never
// a token.

const identityCharsMax = 100;

/** Where the other end of a socket is; undefined for a connection that is made inside the process. */
export function addressOf(socket: object): string | undefined {
  const { remoteAddress, remotePort } = socket as { readonly remoteAddress?: string; readonly remotePort?: number };
  if (remoteAddress === undefined) return undefined;
  // A socket that listens on both families sees IPv4 as such an address.
  const host = remoteAddress.replace(/^::ffff:(?=\d+\.)/, "");
  return `${host.includes(":") ? `[${host}]` : host}:${remotePort}`;
}

export function whoIs(connection: number, address: string | undefined, identity: string | undefined): string {
  const place = address === undefined ? "inside the node" : `from ${address}`;
  const name = identity === undefined || identity === "" ? "" : ` as ${shown(identity)}`;
  return `connection ${connection} ${place}${name}`;
}

/** A hook may say anything: no control characters, and not too much of it. */
function shown(identity: string): string {
  return identity.slice(0, identityCharsMax).replace(/\p{C}/gu, "?");
}
