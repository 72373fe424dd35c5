// Every test of this folder, also those that take long: `node build.mjs --run-entry faults/faults`. Exits 1 if one of them fails.

process.env.FAULTS_ALL = "1";
await import("./no-space.test.ts");
await import("./io-error.test.ts");
await import("./descriptors.test.ts");
await import("./folder.test.ts");
await import("./clock.test.ts");
await import("./blocked.test.ts");
