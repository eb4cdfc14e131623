package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Regions of the demo.
const (
	regionCount      = 3
	regionCollectors = 2
	// agentBatches are what each agent gets accepted between two events.
	agentBatches = 2
	// regionsDeadline is the time until the verdict, on a machine with other work to do.
	regionsDeadline = 4 * time.Minute
)

// executeRegions runs the demo of several regions and cleans up behind it.
func executeRegions(ctx context.Context, o Options, bin string, s *screen) (err error) {
	d, err := newRegions(o, bin, s)
	if err != nil {
		return err
	}
	defer func() {
		s.step("stopping")
		if d.contest != nil {
			d.contest.Stop()
		}
		d.r.StopAll()
		if err != nil && o.Once {
			err = fmt.Errorf("%w (logs in %s; --keep keeps them)", err, o.Dir)
		}
	}()
	dctx, cancel := context.WithTimeout(ctx, o.Deadline)
	defer cancel()
	if err := d.story(dctx); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted before the verdict")
		}
		return err
	}
	if o.Once {
		return nil
	}
	for _, c := range d.r.Of {
		if err := c.StartAgent(ctx); err != nil {
			return err
		}
	}
	d.urls(o.Dir)
	return d.r.Wait(ctx)
}

// urls says where everything is.
func (d *regions) urls(dir string) {
	d.s.title("Running until interrupted (logs and settings in %s):", dir)
	var rows [][]string
	for i, c := range d.r.Of {
		rows = append(rows, []string{d.r.Names[i], "http://" + c.Addr.QueryHTTP, c.Addr.Collectors[0].GRPC, c.Addr.CoordinatorGRPC, "http://" + c.Addr.AgentHTTP})
	}
	d.s.rows("REGION\tPROMQL AND GRAFANA\tFIRST COLLECTOR\tCOORDINATOR\tAGENT", rows)
}

// regions is the demo of several regions, up to its verdict.
type regions struct {
	r       *cluster.Regions
	s       *screen
	contest *load.Contest
	over    chan struct{}
	lost    int // the region that was killed
}

// newRegions makes the system and starts nothing.
func newRegions(o Options, bin string, s *screen) (*regions, error) {
	r, err := cluster.NewRegions(cluster.RegionsOptions{
		Names: cluster.RegionNames[:o.Regions],
		Options: cluster.Options{Bin: bin, Dir: o.Dir, Collectors: regionCollectors, Rollups: 1, DefaultPorts: true, BatchAge: time.Second,
			Adjust: adjustRegions},
	})
	return &regions{r: r, s: s, over: make(chan struct{})}, err
}

// adjustRegions lets everybody notice soon what is done to a region.
func adjustRegions(process string, settings map[string]any) {
	_, name, _ := strings.Cut(process, "/")
	switch {
	case strings.HasPrefix(name, "collector-"):
		// An agent leaves a collector that is cut off after three answers RETRY.
		settings["accept_timeout"] = "2s"
	case name == "agent":
		send := settings["send"].(map[string]any)
		send["connect_timeout"], send["answer_timeout"], send["backoff_max"] = "5s", "6s", "1s"
		send["fallback_after"], send["return_interval"], send["return_after"], send["return_max"] = "1s", "500ms", "2s", "4s"
	case name == "query":
		settings["fanout"] = map[string]any{"timeout": "2s"}
	case name == "reconciler":
		settings["journal"] = map[string]any{"poll_interval": "500ms", "idle_interval": "1s"}
	}
}

// story is the demo up to its verdict.
func (d *regions) story(ctx context.Context) error {
	for _, step := range []func(context.Context) error{d.startAll, d.oneAnswer, d.loseRegion, d.partition, d.verdict} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *regions) startAll(ctx context.Context) error {
	d.s.step("starting %d regions: in each an object store, a coordinator with one etcd member of all regions, %d collectors,",
		len(d.r.Of), regionCollectors)
	d.s.step("  a reconciler, a rollup worker, a query service. Connections from one region to another go through a gate of this demo")
	if err := d.r.Start(ctx); err != nil {
		return err
	}
	var rows [][]string
	for i, c := range d.r.Of {
		rows = append(rows, []string{d.r.Names[i], c.Addr.Store, c.Addr.Collectors[0].GRPC + ", " + c.Addr.Collectors[1].GRPC, c.Addr.CoordinatorGRPC, "http://" + c.Addr.QueryHTTP})
	}
	d.s.rows("REGION\tSTORE\tCOLLECTORS\tCOORDINATOR\tQUERY", rows)
	for i, c := range d.r.Of {
		if err := c.StartAgent(ctx); err != nil {
			return err
		}
		d.s.step("%s reads this host, prefers the collectors of %s, and falls back to those of the other regions", d.r.Of[i].AgentID(), d.r.Names[i])
	}
	// Beside the agents: senders that submit the same identities everywhere at once, all the time, with equal and with
	// other bytes.
	d.contest = load.StartContest(ctx, load.ContestOptions{Seed: uint64(time.Now().UnixNano()), Name: "contest", Clients: 2 * len(d.r.Of), Operations: 1,
		Until: d.over, Pause: 150 * time.Millisecond, Across: true, Addresses: d.addresses()})
	return d.agentsGoOn(ctx, "batches of every agent")
}

func (d *regions) addresses() (all [][]string) {
	for _, c := range d.r.Of {
		var region []string
		for _, a := range c.Addr.Collectors {
			region = append(region, a.GRPC)
		}
		all = append(all, region)
	}
	return all
}

// agentsGoOn waits until every agent has some more batches acknowledged.
func (d *regions) agentsGoOn(ctx context.Context, what string) error {
	was, err := d.acknowledged(ctx)
	if err != nil {
		return err
	}
	return cluster.Poll(ctx, what, func() (bool, error) {
		now, err := d.acknowledged(ctx)
		if err != nil {
			return false, err
		}
		for agent, n := range now {
			if n < was[agent]+agentBatches {
				return false, fmt.Errorf("%s has %d batches acknowledged, %d before", agent, n, was[agent])
			}
		}
		return true, nil
	})
}

// acknowledged is how many batches each agent was told to be accepted, by itself.
func (d *regions) acknowledged(ctx context.Context) (map[string]uint64, error) {
	of := map[string]uint64{}
	for _, c := range d.r.Of {
		for _, status := range []string{"accepted", "duplicate"} {
			n, err := cluster.Metric(ctx, c.Addr.AgentHTTP, "lightmetrics_agent_batches_total", fmt.Sprintf("status=%q", status))
			if err != nil {
				return nil, err
			}
			of[c.AgentID()] += uint64(n)
		}
	}
	return of, nil
}

// oneAnswer submits identities to all regions at once and shows what each was told.
func (d *regions) oneAnswer(ctx context.Context) error {
	const identities = 4
	boot := identity.Boot{Agent: "three-senders", Boot: "boot"}
	at := time.Now().Add(-time.Minute)
	d.s.title("One answer per identity: each is sent to all regions at once, the last region gets other bytes:")
	var rows [][]string
	for n := range identities {
		seq := uint64(n*4 + 1)
		row := []string{fmt.Sprintf("%d-%d", seq, seq+3)}
		answers := make([]string, len(d.r.Of))
		err := cluster.SideBySide(indexes(len(d.r.Of)), func(i int) error {
			value := float64(n)
			if i == len(d.r.Of)-1 {
				value += 1000
			}
			body, err := load.Frame(boot, "demo_three_senders", seq, 2, at.Add(time.Duration(n)*time.Second), value)
			if err != nil {
				return err
			}
			s := load.NewSender(boot, d.addresses()[i]...)
			defer s.Close()
			r, err := s.Send(ctx, body)
			if err != nil {
				return err
			}
			answers[i] = strings.ToLower(strings.TrimPrefix(r.GetStatus().String(), "BATCH_STATUS_"))
			return nil
		})
		if err != nil {
			return err
		}
		// The same bytes went to all but the last region.
		last, others := answers[len(answers)-1], answers[:len(answers)-1]
		if conflict := "identity_conflict"; (last == conflict) == slices.Contains(others, conflict) {
			return fmt.Errorf("identity %d-%d: two frames have it, or none: %v", seq, seq+3, answers)
		}
		rows = append(rows, append(row, answers...))
	}
	d.s.rows("SEQUENCE\t"+strings.ToUpper(strings.Join(d.r.Names, "\t")), rows)
	return nil
}

func indexes(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// loseRegion kills every process of a region, and starts them again.
func (d *regions) loseRegion(ctx context.Context) error {
	if err := d.answerOf(ctx, 0, "all regions to answer", nil); err != nil {
		return err
	}
	lost := d.busiest(ctx, -1)
	c := d.r.Of[lost]
	d.lost = lost
	d.s.blank()
	d.s.step("kill -9 everything in %s: store, coordinator with its etcd member, collectors, reconciler, rollup, query", d.r.Names[lost])
	c.KillServices()
	if err := d.agentsGoOn(ctx, "every agent to go on without "+d.r.Names[lost]); err != nil {
		return err
	}
	d.s.step("every agent goes on, %s with the same frames at another region: %s", c.AgentID(), d.whereAgents(ctx))
	if err := d.answerOf(ctx, d.another(lost), "an answer without "+d.r.Names[lost], []string{d.r.Names[lost]}); err != nil {
		return err
	}
	d.s.step("starting %s again", d.r.Names[lost])
	if err := c.StartServices(ctx); err != nil {
		return err
	}
	if err := d.agentsReturn(ctx); err != nil {
		return err
	}
	return d.answerOf(ctx, d.another(lost), "all regions to answer again", nil)
}

// agentsReturn waits until each agent uses its own region again.
func (d *regions) agentsReturn(ctx context.Context) error {
	err := cluster.Poll(ctx, "every agent to go back to its region", func() (bool, error) {
		for i, c := range d.r.Of {
			if at, _ := d.at(ctx, c); at != i {
				return false, fmt.Errorf("%s is not back: %s", c.AgentID(), d.whereAgents(ctx))
			}
		}
		return true, nil
	})
	if err == nil {
		d.s.step("every agent is back in its own region: %s", d.whereAgents(ctx))
	}
	return err
}

// partition cuts a region off while all of its processes run.
func (d *regions) partition(ctx context.Context) error {
	cut := d.busiest(ctx, d.lost)
	d.s.blank()
	d.s.step("partition: the gate holds back every byte between %s and the other regions; its processes run, and agents reach them", d.r.Names[cut])
	if err := d.r.Isolate(cut); err != nil {
		return err
	}
	if err := d.agentsGoOn(ctx, "every agent to go on while "+d.r.Names[cut]+" is cut off"); err != nil {
		return err
	}
	d.s.step("every agent goes on: %s", d.whereAgents(ctx))
	if err := d.answerOf(ctx, d.another(cut), "an answer without "+d.r.Names[cut], []string{d.r.Names[cut]}); err != nil {
		return err
	}
	var others []string
	for i, name := range d.r.Names {
		if i != cut {
			others = append(others, name)
		}
	}
	if err := d.answerOf(ctx, cut, "an answer of "+d.r.Names[cut]+" alone", others); err != nil {
		return err
	}
	d.s.step("healing the partition: what was held back arrives now, late")
	if err := d.r.Heal(); err != nil {
		return err
	}
	if err := d.agentsReturn(ctx); err != nil {
		return err
	}
	return d.answerOf(ctx, cut, "all regions to answer again", nil)
}

// at is the region whose collector an agent talks to, and which one; -1 at this moment none.
func (d *regions) at(ctx context.Context, c *cluster.Cluster) (region, collector int) {
	st, err := c.AgentStatus(ctx)
	if err != nil {
		return -1, 0
	}
	for _, cs := range st.Sender.Collectors {
		for i, of := range d.r.Of {
			for k, a := range of.Addr.Collectors {
				if cs.Connected && cs.Address == a.GRPC {
					return i, k
				}
			}
		}
	}
	return -1, 0
}

// busiest is the region that most agents talk to, but this one.
func (d *regions) busiest(ctx context.Context, but int) int {
	agents := make([]int, len(d.r.Of))
	for _, c := range d.r.Of {
		if i, _ := d.at(ctx, c); i >= 0 {
			agents[i]++
		}
	}
	most := d.another(but)
	for i, n := range agents {
		if i != but && n > agents[most] {
			most = i
		}
	}
	return most
}

// another is a region but this one.
func (d *regions) another(but int) int {
	if but == 0 {
		return 1
	}
	return 0
}

func (d *regions) whereAgents(ctx context.Context) string {
	var all []string
	for _, c := range d.r.Of {
		where := "between two"
		if i, k := d.at(ctx, c); i >= 0 {
			where = fmt.Sprintf("collector %d of %s", k+1, d.r.Names[i])
		}
		all = append(all, c.AgentID()+" at "+where)
	}
	return strings.Join(all, ", ")
}

// answerOf asks region i's query service until exactly these regions are missing in its answer, and shows it.
func (d *regions) answerOf(ctx context.Context, i int, what string, missing []string) error {
	const expression = "count(node_load1)"
	var got *cluster.RegionsAnswer
	slices.Sort(missing) // as Missing gives them
	err := cluster.Poll(ctx, what, func() (bool, error) {
		a, err := d.r.Of[i].AskRegions(ctx, expression)
		if err != nil {
			return false, err
		}
		got = a
		if have := a.Missing(); !slices.Equal(have, missing) {
			return false, fmt.Errorf("the answer lacks %v, want %v: %+v", have, missing, a.Regions)
		}
		return len(missing) > 0 == a.Partial, fmt.Errorf("partial: %v", a.Partial)
	})
	if err != nil {
		return err
	}
	d.s.title("PromQL in %s over all regions: %s", d.r.Names[i], expression)
	rows := [][]string{}
	for _, x := range got.Regions {
		why := "complete"
		if x.Reason != "" {
			why = "missing: " + x.Reason
		} else if x.Partial {
			why = "partial"
		}
		rows = append(rows, []string{got.Value, x.Name, why, x.CompleteThrough})
	}
	d.s.rows("ANSWER\tREGION\tSTATE\tCOMPLETE THROUGH", rows)
	return nil
}

var errStopAgents = errors.New("an agent did not stop cleanly")

// verdict stops all load and holds what every side counts against each other.
func (d *regions) verdict(ctx context.Context) error {
	d.s.blank()
	d.s.step("stopping the agents and the senders: they send what they hold, then every side is counted")
	close(d.over)
	for _, c := range d.r.Of {
		if err := cluster.Stop(&c.Agent); err != nil {
			return fmt.Errorf("%w: %w", errStopAgents, err)
		}
	}
	seen, err := d.contest.Finish(ctx)
	if err != nil {
		return err
	}
	report, err := load.CheckRegions(ctx, d.r, seen)
	if err != nil {
		return err
	}
	stats, err := seen.Calls.Check()
	if err != nil {
		return err
	}
	d.s.title("Senders that submitted the same identities everywhere:")
	rows := [][]string{
		{"submissions, with equal bytes, other bytes, and ranges that overlap", fmt.Sprint(seen.Submissions)},
		{"answers accepted or duplicate, and conflict, also when asked again at the end", fmt.Sprintf("%d, %d", stats.Answers-seen.Conflicts, seen.Conflicts)},
		{"identities acknowledged, each with one hash", fmt.Sprint(len(seen.Acked))},
		{"histories that are not those of a write-once register", "0"},
		{"claims that are held", "0"},
	}
	for _, name := range d.r.Names {
		rows = append(rows, []string{"batches that count in " + name, fmt.Sprint(report.Counted[name])})
	}
	d.s.rows("WHAT\tCOUNT", rows)
	return d.agentsVerdict(ctx, seen)
}

// agentsVerdict: no agent has a gap, and every region's query service counts everything once.
func (d *regions) agentsVerdict(ctx context.Context, seen *load.Contested) error {
	t := &regionsTally{d: d, seen: seen}
	if err := cluster.Poll(ctx, "all sides to agree", func() (bool, error) { err := t.count(ctx); return err == nil, err }); err != nil {
		return err
	}
	d.s.title("Agents, by the journals of all regions:")
	d.s.rows("AGENT\tRECORDS NUMBERED\tBATCHES\tCOUNTED IN\tGAPS\tOVERLAPS", t.rows)
	d.s.rows("WHO\tWHAT\tCOUNT", t.sides)
	d.s.step("verdict: one answer per identity, no gap, every record in one region's count, and the same PromQL answer in every region")
	return nil
}
