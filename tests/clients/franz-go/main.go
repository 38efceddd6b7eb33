// franz-go as a driver: the commands are those of tests/clients/drivers/serve.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const requestSeconds = 20

type command struct {
	Do         string
	Topic      string
	Partitions int32
	Records    [][2]any
	Topics     []string
	Group      string
	ID         string
	Seconds    float64
	Count      int
	Commit     bool
	Offsets    [][3]any
	Way        way
	Settings   struct{ Protocol, Assignor, Instance, Isolation string }
}

type place struct {
	topic     string
	partition int32
}

type driver struct {
	bootstrap string
	admin     *kadm.Client
	plain     *kgo.Client
	consumer  *kgo.Client
	producer  *kgo.Client
	way       *kadm.Client
	session   *kgo.GroupTransactSession // consumer and producer in one; End commits what was polled
	offsets   bool                      // whether it is to

	lock     sync.Mutex
	assigned map[place]bool
	revoked  []place
	read     map[place]kgo.EpochOffset
}

func main() {
	d := &driver{bootstrap: os.Args[1]}
	client, err := kgo.NewClient(d.common()...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	d.admin = kadm.NewClient(client)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var c command
		answer := map[string]any{}
		err := json.Unmarshal(lines.Bytes(), &c)
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), requestSeconds*time.Second)
			answer["ok"], err = d.carryOut(ctx, c)
			cancel()
		}
		if err != nil {
			answer = map[string]any{"failed": map[string]string{"code": codeOf(err), "reason": err.Error()}}
		}
		if out.Encode(answer) != nil {
			return
		}
	}
}

func codeOf(err error) string {
	var known *kerr.Error
	if errors.As(err, &known) {
		return known.Message
	}
	return fmt.Sprintf("%T", err)
}

func (d *driver) common(more ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{kgo.SeedBrokers(strings.Split(d.bootstrap, ",")...), kgo.RecordPartitioner(kgo.ManualPartitioner())}, more...)
}

func (d *driver) carryOut(ctx context.Context, c command) (any, error) {
	switch c.Do {
	case "about":
		return map[string]string{"client": "franz-go", "version": version()}, nil
	case "create_topic":
		_, err := d.admin.CreateTopic(ctx, c.Partitions, 3, nil, c.Topic)
		return nil, err
	case "delete_topic":
		_, err := d.admin.DeleteTopic(ctx, c.Topic)
		return nil, err
	case "produce":
		if d.plain == nil {
			var err error
			if d.plain, err = kgo.NewClient(d.common()...); err != nil {
				return nil, err
			}
		}
		return send(ctx, d.plain.ProduceSync, c)
	case "subscribe":
		client, err := kgo.NewClient(d.common(d.consuming(c)...)...)
		d.consumer = client
		return nil, err
	case "chain":
		options := d.common(append(d.consuming(c), kgo.TransactionalID(c.ID))...)
		session, err := kgo.NewGroupTransactSession(options...)
		if err == nil {
			d.session, d.consumer = session, session.Client()
			_, _, err = d.consumer.ProducerID(ctx)
		}
		return nil, err
	case "poll":
		return d.poll(c)
	case "commit":
		d.lock.Lock()
		positions := d.positions()
		d.lock.Unlock()
		var failed error
		d.consumer.CommitOffsetsSync(ctx, positions, commitFailed(&failed))
		return nil, failed
	case "transactional":
		client, err := kgo.NewClient(d.common(kgo.TransactionalID(c.ID))...)
		if err == nil {
			d.producer = client
			_, _, err = client.ProducerID(ctx) // what other clients call initialising
		}
		return nil, err
	case "begin":
		d.offsets = false
		if d.session != nil {
			return nil, d.session.Begin()
		}
		return nil, d.producer.BeginTransaction()
	case "send":
		if d.session != nil {
			return send(ctx, d.session.ProduceSync, c)
		}
		return send(ctx, d.producer.ProduceSync, c)
	case "send_offsets":
		d.offsets = true
		return nil, nil
	case "end":
		return nil, d.end(ctx, c.Commit)
	case "close":
		d.close()
		return nil, nil
	default:
		return d.administer(ctx, c)
	}
}

func (d *driver) administer(ctx context.Context, c command) (any, error) {
	switch c.Do {
	case "log_in":
		return d.logIn(ctx, c.Way)
	case "topics":
		return d.topics(ctx)
	case "groups":
		found, err := d.admin.ListGroups(ctx)
		return found.Groups(), err
	case "describe_group":
		all, err := d.admin.DescribeGroups(ctx, c.Group)
		if err != nil {
			return nil, err
		}
		found := all[c.Group]
		return map[string]any{"state": found.State, "members": len(found.Members)}, found.Err
	case "group_offsets":
		found, err := d.admin.FetchOffsets(ctx, c.Group)
		told := [][3]any{}
		for _, one := range found.Offsets().Sorted() {
			told = append(told, [3]any{one.Topic, one.Partition, one.At})
		}
		return told, err
	case "reset_offsets":
		offsets := kadm.Offsets{}
		for _, one := range c.Offsets {
			offsets.AddOffset(one[0].(string), int32(one[1].(float64)), int64(one[2].(float64)), -1)
		}
		return nil, d.admin.CommitAllOffsets(ctx, c.Group, offsets)
	case "delete_group":
		_, err := d.admin.DeleteGroup(ctx, c.Group)
		return nil, err
	}
	return nil, fmt.Errorf("no such command: %s", c.Do)
}

func (d *driver) consuming(c command) []kgo.Opt {
	d.assigned, d.revoked, d.read = map[place]bool{}, nil, map[place]kgo.EpochOffset{}
	gone := func(_ context.Context, _ *kgo.Client, taken map[string][]int32) {
		d.lock.Lock()
		defer d.lock.Unlock()
		for topic, partitions := range taken {
			for _, partition := range partitions {
				delete(d.assigned, place{topic, partition})
				delete(d.read, place{topic, partition})
				d.revoked = append(d.revoked, place{topic, partition})
			}
		}
	}
	options := []kgo.Opt{
		kgo.ConsumerGroup(c.Group),
		kgo.ConsumeTopics(c.Topics...),
		kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(500 * time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, given map[string][]int32) {
			d.lock.Lock()
			defer d.lock.Unlock()
			for topic, partitions := range given {
				for _, partition := range partitions {
					d.assigned[place{topic, partition}] = true
				}
			}
		}),
		kgo.OnPartitionsRevoked(gone),
		kgo.OnPartitionsLost(gone),
	}
	if c.Settings.Isolation != "read_uncommitted" {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	if c.Settings.Protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
	} else {
		balancer := kgo.RangeBalancer()
		if c.Settings.Assignor == "cooperative" {
			balancer = kgo.CooperativeStickyBalancer()
		}
		options = append(options, kgo.Balancers(balancer),
			kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(300*time.Millisecond))
	}
	if c.Settings.Instance != "" {
		options = append(options, kgo.InstanceID(c.Settings.Instance))
	}
	return options
}

func (d *driver) poll(c command) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(c.Seconds*float64(time.Second)))
	defer cancel()
	records := [][4]any{}
	for len(records) < c.Count && ctx.Err() == nil {
		fetches := d.consumer.PollRecords(ctx, c.Count-len(records))
		for _, one := range fetches.Errors() {
			if !errors.Is(one.Err, context.DeadlineExceeded) {
				return nil, one.Err
			}
		}
		d.lock.Lock()
		fetches.EachRecord(func(one *kgo.Record) {
			records = append(records, [4]any{one.Topic, one.Partition, one.Offset, string(one.Value)})
			d.read[place{one.Topic, one.Partition}] = kgo.EpochOffset{Epoch: one.LeaderEpoch, Offset: one.Offset + 1}
		})
		d.lock.Unlock()
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	assigned, revoked := [][2]any{}, [][2]any{}
	for one := range d.assigned {
		assigned = append(assigned, [2]any{one.topic, one.partition})
	}
	for _, one := range d.revoked {
		revoked = append(revoked, [2]any{one.topic, one.partition})
	}
	d.revoked = nil
	return map[string]any{"records": records, "assigned": assigned, "revoked": revoked}, nil
}

func (d *driver) positions() map[string]map[int32]kgo.EpochOffset {
	found := map[string]map[int32]kgo.EpochOffset{}
	for one, offset := range d.read {
		if found[one.topic] == nil {
			found[one.topic] = map[int32]kgo.EpochOffset{}
		}
		found[one.topic][one.partition] = offset
	}
	return found
}

func (d *driver) end(ctx context.Context, commit bool) error {
	try := kgo.TransactionEndTry(commit)
	if d.session == nil {
		return d.producer.EndTransaction(ctx, try)
	}
	if commit && !d.offsets {
		return errors.New("a session's commit has its offsets in it")
	}
	committed, err := d.session.End(ctx, try)
	if err == nil && committed != commit {
		return errors.New("the session aborted what was to be committed: its group has moved on")
	}
	return err
}

func (d *driver) close() {
	if d.session != nil {
		d.session.Close()
	} else {
		if d.consumer != nil {
			d.consumer.Close()
		}
		if d.producer != nil {
			d.producer.Close()
		}
	}
	d.session, d.consumer, d.producer = nil, nil, nil
}

type produceSync func(context.Context, ...*kgo.Record) kgo.ProduceResults

func send(ctx context.Context, through produceSync, c command) ([]int64, error) {
	offsets := []int64{}
	for _, one := range c.Records {
		record := &kgo.Record{Topic: c.Topic, Partition: int32(one[0].(float64)), Value: []byte(one[1].(string))}
		done, err := through(ctx, record).First()
		if err != nil {
			return nil, err
		}
		offsets = append(offsets, done.Offset)
	}
	return offsets, nil
}

func version() string {
	if built, ok := debug.ReadBuildInfo(); ok {
		for _, one := range built.Deps {
			if one.Path == "github.com/twmb/franz-go" {
				return one.Version
			}
		}
	}
	return "unknown"
}

// commitFailed keeps the first error of a commit, which the answer tells for each partition.
func commitFailed(failed *error) func(*kgo.Client, *kmsg.OffsetCommitRequest, *kmsg.OffsetCommitResponse, error) {
	return func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, answer *kmsg.OffsetCommitResponse, err error) {
		*failed = err
		if answer == nil {
			return
		}
		for _, topic := range answer.Topics {
			for _, partition := range topic.Partitions {
				if *failed == nil {
					*failed = kerr.ErrorForCode(partition.ErrorCode)
				}
			}
		}
	}
}
