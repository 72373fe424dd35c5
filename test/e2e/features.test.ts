import { test } from "uvu";
import { features } from "../conformance/features.ts";
import { dataFolder } from "../support/node-process.ts";

const data = dataFolder();

features({ place: () => ({ dataPath: data.path }), end: async () => data.remove() });

test.run();
