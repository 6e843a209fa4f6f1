// Scenarios of Node.js libraries over Redis: node scenarios.mjs URL NAME. Each throws if the library does
// not do what its documentation says.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";

const [url, name] = process.argv.slice(2);

async function ioredis(options = {}) {
  const { default: Redis } = await import("ioredis");
  return new Redis(url, { maxRetriesPerRequest: null, ...options });
}

async function nodeRedis() {
  const { createClient } = await import("redis");
  const client = createClient({ url });
  client.on("error", (error) => { throw error; });
  return client.connect();
}

const scenarios = {
  // Jobs, priorities, delays, retries, and a flow of parents and children.
  async bullmq() {
    const { Queue, Worker, QueueEvents, FlowProducer } = await import("bullmq");
    const connection = await ioredis();
    const queue = new Queue("jobs", { connection });
    const events = new QueueEvents("jobs", { connection: await ioredis() });
    await events.waitUntilReady();
    const worker = new Worker("jobs", async (job) => {
      if (job.name === "flaky" && job.attemptsMade < 2) throw new Error("again");
      if (job.name === "parent") return Object.values(await job.getChildrenValues()).reduce((a, b) => a + b);
      return job.data.number * 2;
    }, { connection: await ioredis(), concurrency: 4 });
    const jobs = await queue.addBulk(
      [...Array(40).keys()].map((number) => ({ name: "double", data: { number } })));
    const results = await Promise.all(jobs.map((job) => job.waitUntilFinished(events, 60000)));
    assert.deepEqual(results, [...Array(40).keys()].map((number) => number * 2));
    const flaky = await queue.add("flaky", { number: 4 }, { attempts: 5, backoff: 50, priority: 3 });
    assert.equal(await flaky.waitUntilFinished(events, 60000), 8);
    const late = await queue.add("late", { number: 1 }, { delay: 300 });
    assert.equal(await late.waitUntilFinished(events, 60000), 2);
    const flow = new FlowProducer({ connection: await ioredis() });
    const tree = await flow.add({
      name: "parent", queueName: "jobs",
      children: [1, 2, 3].map((number) => ({ name: "child", data: { number }, queueName: "jobs" })),
    });
    assert.equal(await tree.job.waitUntilFinished(events, 60000), 12);
    const counts = await queue.getJobCounts("completed", "failed", "waiting", "active");
    assert.deepEqual(counts, { completed: 46, failed: 0, waiting: 0, active: 0 });
    await queue.obliterate({ force: true });
    await Promise.all([worker.close(), events.close(), queue.close(), flow.close()]);
  },

  // Jobs of bee-queue, whose moves are scripts.
  async beequeue() {
    const { default: Queue } = await import("bee-queue");
    const { hostname: host, port, pathname } = new URL(url);
    const redis = { host, port: Number(port), db: Number(pathname.slice(1) || 0) };
    const queue = new Queue("sums", { redis });
    queue.process(async (job) => job.data.x + job.data.y);
    const done = [...Array(20).keys()].map(async (n) => {
      const job = queue.createJob({ x: n, y: 1 });
      const result = new Promise((resolve) => job.on("succeeded", resolve));
      await job.save();
      return result;
    });
    assert.deepEqual(await Promise.all(done), [...Array(20).keys()].map((n) => n + 1));
    await queue.close();
  },

  // Two servers of Socket.IO: rooms reach clients of both, and each counts the other.
  async socketio() {
    const { Server } = await import("socket.io");
    const { io } = await import("socket.io-client");
    const { createAdapter } = await import("@socket.io/redis-adapter");
    const servers = [];
    for (let number = 0; number < 2; number += 1) {
      const publisher = await nodeRedis();
      const subscriber = publisher.duplicate();
      await subscriber.connect();
      const http = createServer();
      const server = new Server(http, { adapter: createAdapter(publisher, subscriber) });
      server.on("connection", (socket) => socket.join("room"));
      await new Promise((resolve) => http.listen(0, "127.0.0.1", resolve));
      servers.push({ server, publisher, subscriber, port: http.address().port });
    }
    const clients = servers.map(({ port }) => io(`http://127.0.0.1:${port}`, { transports: ["websocket"] }));
    const heard = clients.map((client) => new Promise((resolve) => client.on("greeting", resolve)));
    await Promise.all(clients.map((client) => new Promise((resolve) => client.on("connect", resolve))));
    const deadline = Date.now() + 30000;
    let sockets = [];
    while ((sockets = await servers[0].server.fetchSockets()).length < 2) {
      assert.ok(Date.now() < deadline, "the servers don't know of each other");
      await sleep(50);
    }
    servers[0].server.to("room").emit("greeting", "hello");
    assert.deepEqual(await Promise.all(heard), ["hello", "hello"]);
    assert.equal(await servers[1].server.of("/").adapter.serverCount(), 2);
    clients.forEach((client) => client.close());
    for (const { server, publisher, subscriber } of servers) {
      await server.close();
      await publisher.close();
      await subscriber.close();
    }
  },

  // Points within a duration, at the same time.
  async ratelimiter() {
    const { RateLimiterRedis } = await import("rate-limiter-flexible");
    const storeClient = await ioredis();
    const limiter = new RateLimiterRedis({ storeClient, points: 10, duration: 60 });
    const tries = await Promise.allSettled([...Array(30)].map(() => limiter.consume("visitor")));
    assert.equal(tries.filter(({ status }) => status === "fulfilled").length, 10);
    assert.equal((await limiter.get("visitor")).consumedPoints, 30);
    await storeClient.quit();
  },

  // The sessions of an Express application.
  async express() {
    const { default: expressApp } = await import("express");
    const { default: session } = await import("express-session");
    const { RedisStore } = await import("connect-redis");
    const client = await nodeRedis();
    const app = expressApp();
    app.use(session({
      store: new RedisStore({ client }), secret: "secret", resave: false, saveUninitialized: false,
    }));
    app.get("/", (request, response) => {
      request.session.visits = (request.session.visits ?? 0) + 1;
      response.send(String(request.session.visits));
    });
    const server = await new Promise((resolve) => { const s = app.listen(0, () => resolve(s)); });
    const page = `http://127.0.0.1:${server.address().port}/`;
    const first = await fetch(page);
    assert.equal(await first.text(), "1");
    const cookie = first.headers.get("set-cookie").split(";")[0];
    for (const visits of ["2", "3"]) {
      assert.equal(await (await fetch(page, { headers: { cookie } })).text(), visits);
    }
    assert.equal((await client.keys("sess:*")).length, 1);
    server.close();
    client.destroy();
  },

  // Locks that are acquired, extended and released by scripts.
  async redlock() {
    const { default: Redlock } = await import("redlock");
    const client = await ioredis();
    const locks = new Redlock([client], { retryCount: 0 });
    const lock = await locks.lock("resource", 5000);
    await assert.rejects(locks.lock("resource", 5000));
    await (await lock.extend(5000)).unlock();
    await (await locks.lock("resource", 5000)).unlock();
    await client.quit();
  },

  // ioredis: pipelines, MULTI, its own commands, streams, scans, and messages.
  async ioredis() {
    const client = await ioredis();
    client.defineCommand("addAll", {
      numberOfKeys: 1,
      lua: "local sum = 0 for i = 1, #ARGV do sum = redis.call('INCRBY', KEYS[1], ARGV[i]) end return sum",
    });
    assert.equal(await client.addAll("sum", 1, 2, 3), 6);
    const answers = await client.multi().hset("hash", "a", 1).hincrby("hash", "a", 2).hgetall("hash").exec();
    assert.deepEqual(answers.map(([, answer]) => answer), [1, 3, { a: "3" }]);
    const pipeline = client.pipeline();
    for (let number = 0; number < 200; number += 1) pipeline.zadd("scores", number, `member:${number}`);
    await pipeline.exec();
    const found = new Set();
    for await (const part of client.zscanStream("scores", { match: "member:1*" })) {
      part.filter((_, at) => at % 2 === 0).forEach((member) => found.add(member));
    }
    assert.equal(found.size, 111);
    const subscriber = client.duplicate();
    const heard = new Promise((resolve) => subscriber.on("message", (channel, text) => resolve([channel, text])));
    await subscriber.subscribe("news");
    assert.equal(await client.publish("news", "hello"), 1);
    assert.deepEqual(await heard, ["news", "hello"]);
    const popped = client.duplicate().blpop("list", 30);
    await client.rpush("list", "item");
    assert.deepEqual(await popped, ["list", "item"]);
    process.exit(0);
  },
};

if (name === undefined) {
  console.log(Object.keys(scenarios).join("\n"));
} else {
  await scenarios[name]();
  process.exit(0);
}
