"""scripts/bench raft"""
import asyncio, sys, tempfile, time, os
from pathlib import Path
from tests.bench.ours import cluster, leaders
from tests.processes.latencies import merged, percentile

async def load(folder, in_flight, seconds, profile):
    async with cluster(folder, 1) as nodes:
        (place, groups), = (await leaders(nodes, 1)).items()
        await asyncio.sleep(0.5)
        if profile: await nodes[place].ask("profile_start")
        if profile: await nodes[(place+1)%3].ask("profile_start")
        before=[await n.ask("usage") for n in nodes]
        r = await nodes[place].ask("load", timeout=60, groups=groups, in_flight=in_flight, warmup=0.5, seconds=seconds, size=200)
        after=[await n.ask("usage") for n in nodes]
        cpu=[(b["cpu"]-a["cpu"]) for a,b in zip(before,after)]
        if profile: print((await nodes[place].ask("profile_end", lines=35))["profile"])
        if profile: print("FOLLOWER", (await nodes[(place+1)%3].ask("profile_end", lines=25))["profile"])
        b = merged([r["latencies"]])
        print(f"in flight {in_flight}: {r['rate']:.0f}/s p50 {percentile(b,.5)*1e3:.2f} ms p99 {percentile(b,.99)*1e3:.2f} ms cpu us/cmd {sum(cpu)/r['acknowledged']*1e6:.1f} leader {cpu[place]:.2f}s refused {r['refused']} {r['refusals']}", flush=True)
        for n in nodes: await n.quit()

def main():
    profile = "--profile" in sys.argv
    ns=[int(a) for a in sys.argv[1:] if a.isdigit()] or [1,64,4096]
    for n in ns:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as d:
            asyncio.run(load(Path(d), n, 3.0, profile))
if __name__ == "__main__": main()
