// Graphviz, as WebAssembly: DOT on stdin, SVG on stdout. The same picture on every machine: it measures no fonts.
import { readFileSync } from "node:fs";
import { instance } from "@viz-js/viz";

process.stdout.write((await instance()).renderString(readFileSync(0, "utf8"), { format: "svg", engine: "dot" }));
