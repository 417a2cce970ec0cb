// Perfetto's trace processor as WebAssembly, under node: FOLDER (of engine_bundle.js), REQUESTS and REPLIES (files).
// It speaks its byte-oriented RPC over the port that a page would hand it.
const fs = require("fs");
const path = require("path");

const [folder, requests, replies] = process.argv.slice(2);
const bytes = new Uint8Array(fs.readFileSync(requests));
const received = [];
const port = { postMessage: (data) => received.push(Buffer.from(data)), onmessage: null };

process.chdir(folder);
global.self = global;
process.on("exit", () => fs.writeFileSync(replies, Buffer.concat(received)));
require(path.join(folder, "engine_bundle.js"));
self.onmessage({ data: { enginePort: port } });

// It answers within the call, once its code is compiled; before that it refuses by an exception.
const tryUntil = Date.now() + 60000;
function ask() {
  try {
    port.onmessage({ data: bytes });
    process.exit(0);
  } catch (error) {
    if (received.length > 0 || Date.now() > tryUntil) throw error;
    setTimeout(ask, 50);
  }
}
setTimeout(ask, 200);
