// What can be said about the database before a node starts on it: server, rights, format, indexes, owners.

import { type Inspection, inspectDatabase } from "../store/mongo/inspection.ts";
import { type Finding, fail, ok, warn } from "./finding.ts";

export async function checkMongo(url: string): Promise<readonly Finding[]> {
  let found: Inspection;
  try {
    found = await inspectDatabase(url);
  } catch (error) {
    return [fail("mongo", (error as Error).message)];
  }
  return [
    ok("mongo", `version ${found.server.version}, ${found.server.set}, at ${found.hosts}`),
    rightsFinding(found),
    formatFinding(found),
    ...indexFindings(found),
    ownersFinding(found),
  ];
}

function rightsFinding({ missingRights, database }: Inspection): Finding {
  if (missingRights.length === 0) return ok("rights", `enough on database ${database}`);
  const grant = `db.grantRolesToUser("<user>", [{ role: "readWrite", db: "${database}" }])`;
  return fail("rights", `the user of MONGO_URL lacks ${missingRights.join(", ")} on database ${database}: ${grant}`);
}

function formatFinding({ format, database }: Inspection): Finding {
  if (format === undefined) return ok("format", `nothing in database ${database} yet; the first start makes it`);
  const { version, versionMax, shards } = format;
  if (!Number.isInteger(version) || !Number.isInteger(shards)) {
    return fail("format", `{ _id: "format" } of owners in database ${database} cannot be read: restore it`);
  }
  if (version > versionMax) {
    return fail("format", `version ${version}, this program reads up to ${versionMax}: use a newer narthex`);
  }
  return ok("format", `version ${version}, ${shards} ${shards === 1 ? "shard" : "shards"}`);
}

function indexFindings({ format, indexes: { wanted, faults } }: Inspection): readonly Finding[] {
  if (faults.length === 0) return [ok("indexes", `all ${wanted} are there`)];
  if (format === undefined && faults.every(({ fault }) => fault === "missing")) {
    return [ok("indexes", `none yet; the first start makes ${wanted}`)];
  }
  return faults.map(({ fault, text }) => {
    return fault === "missing" ? warn("indexes", `${text}; the next start makes it`) : fail("indexes", text);
  });
}

function ownersFinding({ owners }: Inspection): Finding {
  const alive = owners.filter((owner) => owner.alive);
  if (alive.length === 0) return ok("owners", "nobody has a shard; a start takes all of them");
  const nodes = [...new Set(alive.map(({ node }) => node))].map((node) => {
    const shards = alive.filter((owner) => owner.node === node).map(({ shard }) => shard);
    return `${node} has ${shards.length === 1 ? "shard" : "shards"} ${shards.join(", ")}`;
  });
  return ok("owners", `${nodes.join("; ")}; another node waits until that one has ended`);
}
