// Talks to the API at $BASE_URL with the key $API_KEY as the Google SDK does, and prints the objects that it built.
import { GoogleGenAI } from "@google/genai";

const client = new GoogleGenAI({ apiKey: process.env.API_KEY, httpOptions: { baseUrl: process.env.BASE_URL } });
const parametersJsonSchema = { type: "object", properties: { cmd: { type: "string" } }, required: ["cmd"] };
const tools = [{ functionDeclarations: [{ name: "run", description: "Runs a command.", parametersJsonSchema }] }];

// What the reply said; the SDK keeps the HTTP response beside it.
const said = ({ sdkHttpResponse, ...reply }) => reply;

async function contents() {
  const task = { model: "gemini-9", contents: [{ role: "user", parts: [{ text: "Say hello." }] }] };
  const plain = await client.models.generateContent(task);
  const streamed = [];
  for await (const chunk of await client.models.generateContentStream(task)) streamed.push(said(chunk));
  const called = [];
  for await (const chunk of await client.models.generateContentStream({ ...task, config: { tools } })) called.push(chunk);
  const { id, name } = called.flatMap((chunk) => chunk.functionCalls ?? [])[0];
  const result = { role: "user", parts: [{ functionResponse: { id, name, response: { output: "a.txt" } } }] };
  const history = [...task.contents, called[0].candidates[0].content, result];
  const second = await client.models.generateContent({ ...task, contents: history, config: { tools } });
  const counted = await client.models.countTokens(task);
  return {
    plain: said(plain),
    streamed,
    called: called.map(said),
    second: said(second),
    counted: said(counted),
    text: plain.text,
  };
}

async function failed() {
  try {
    await client.models.generateContent({ model: "gemini-9", contents: [{ role: "nobody", parts: [{ text: "x" }] }] });
  } catch (error) {
    return { name: error.constructor.name, status: error.status, told: JSON.parse(error.message).error.status };
  }
}

console.log(JSON.stringify({ contents: await contents(), failed: await failed() }));
