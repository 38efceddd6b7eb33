// A driver on segmentio/kafka-go: what its Writer and its group Reader do. The commands are those of
// drivers/serve.py; it has no others, and does not tell what a member is assigned, which its Reader keeps to itself.
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
	"time"

	"github.com/segmentio/kafka-go"
)

const requestSeconds = 20

type command struct {
	Do      string
	Topic   string
	Topics  []string
	Group   string
	Records [][2]any
	Seconds float64
	Count   int
}

type driver struct {
	brokers []string
	reader  *kafka.Reader
	read    []kafka.Message // and not committed
}

func main() {
	d := &driver{brokers: strings.Split(os.Args[1], ",")}
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
	var known kafka.Error
	if errors.As(err, &known) {
		return known.Title()
	}
	return fmt.Sprintf("%T", err)
}

func (d *driver) carryOut(ctx context.Context, c command) (any, error) {
	switch c.Do {
	case "about":
		return map[string]string{"client": "kafka-go", "version": version()}, nil
	case "produce":
		return nil, d.produce(ctx, c)
	case "subscribe":
		d.reader = kafka.NewReader(kafka.ReaderConfig{
			Brokers:           d.brokers,
			GroupID:           c.Group,
			GroupTopics:       c.Topics,
			StartOffset:       kafka.FirstOffset,
			MaxWait:           200 * time.Millisecond,
			SessionTimeout:    6 * time.Second,
			HeartbeatInterval: 300 * time.Millisecond,
			RebalanceTimeout:  6 * time.Second,
			ErrorLogger:       kafka.LoggerFunc(func(form string, args ...any) { fmt.Fprintf(os.Stderr, form+"\n", args...) }),
		})
		return nil, nil
	case "poll":
		return d.poll(c)
	case "commit":
		err := d.reader.CommitMessages(ctx, d.read...)
		d.read = nil
		return nil, err
	case "close":
		if d.reader == nil {
			return nil, nil
		}
		reader := d.reader
		d.reader, d.read = nil, nil
		return nil, reader.Close()
	default:
		return nil, fmt.Errorf("no such command: %s", c.Do)
	}
}

func (d *driver) produce(ctx context.Context, c command) error {
	writer := &kafka.Writer{
		Addr:         kafka.TCP(d.brokers...),
		Topic:        c.Topic,
		RequiredAcks: kafka.RequireAll,
		BatchTimeout: 5 * time.Millisecond,
		Balancer: kafka.BalancerFunc(func(one kafka.Message, _ ...int) int {
			return int(one.WriterData.(float64))
		}),
	}
	messages := []kafka.Message{}
	for _, one := range c.Records {
		messages = append(messages, kafka.Message{Value: []byte(one[1].(string)), WriterData: one[0]})
	}
	return errors.Join(writer.WriteMessages(ctx, messages...), writer.Close())
}

func (d *driver) poll(c command) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(c.Seconds*float64(time.Second)))
	defer cancel()
	records := [][4]any{}
	for len(records) < c.Count {
		one, err := d.reader.FetchMessage(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			return nil, err
		}
		d.read = append(d.read, one)
		records = append(records, [4]any{one.Topic, one.Partition, one.Offset, string(one.Value)})
	}
	return map[string]any{"records": records, "assigned": [][2]any{}, "revoked": [][2]any{}}, nil
}

func version() string {
	if built, ok := debug.ReadBuildInfo(); ok {
		for _, one := range built.Deps {
			if one.Path == "github.com/segmentio/kafka-go" {
				return one.Version
			}
		}
	}
	return "unknown"
}
