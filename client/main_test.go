package client_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/client"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/services/ingest"
	"lightmetrics.dev/lightmetrics/services/query"
)

// Addresses of the services that TestMain starts: what examples would read from their settings.
var (
	collector   string // gRPC of a collector
	collectHTTP string
	queryNode   string // gRPC of a query node over the same bucket
	bucket      = mem.New(time.Now)
)

// patience bounds what tests wait for.
const patience = time.Minute

// TestMain runs a collector and a query node over a bucket in memory.
func TestMain(m *testing.M) {
	if os.Getenv(standIn) != "" {
		if err := curl(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(7)
		}
		return
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	ic := ingest.DefaultConfig()
	ic.GRPC.Listen, ic.HTTP.Listen = "127.0.0.1:0", "127.0.0.1:0"
	in, err := ingest.New(ic, ingest.Deps{Store: bucket, Telemetry: telemetry.Discard()})
	if err != nil {
		log.Fatal(err)
	}
	qc := query.DefaultConfig()
	qc.HTTP.Listen, qc.GRPC.Listen, qc.Follow.PollInterval = "127.0.0.1:0", "127.0.0.1:0", 20*time.Millisecond
	q, err := query.New(qc, query.Deps{Store: bucket, Telemetry: telemetry.Discard()})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- in.Run(ctx) }()
	go func() { ended <- q.Run(ctx) }()
	<-in.Ready()
	<-q.Ready()
	collector, collectHTTP, queryNode = in.GRPCAddr(), in.HTTPAddr(), q.GRPCAddr()
	for end := time.Now().Add(patience); in.NotReady() != nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			log.Fatal(in.NotReady())
		}
	}
	if err := seed(); err != nil {
		log.Fatal(err)
	}
	code := m.Run()
	stop()
	for range 2 {
		if err := <-ended; err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// seed sends what the examples of queries ask for, and waits until the query node has it.
func seed() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	w, err := client.Open(client.Memory, client.Options{Agent: "warehouse", Collectors: []string{collector}})
	if err != nil {
		return err
	}
	stock := &client.Series{Name: "stock", Type: client.Gauge, Labels: client.Labels{"article": "lamp"}}
	if err := w.Append(ctx, stock.Now(12)); err != nil {
		return err
	}
	if err := w.Flush(ctx); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	_, err = ask(ctx, "stock")
	return err
}

// ask waits until the query node gives a whole answer that is not empty.
func ask(ctx context.Context, expression string) (*client.Answer, error) {
	q, err := client.DialQuery(queryNode, client.Credentials{})
	if err != nil {
		return nil, err
	}
	defer q.Close()
	for {
		a, err := q.Instant(ctx, expression, time.Time{})
		if err == nil && len(a.Series) > 0 && !a.Completeness.Partial {
			return a, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: %v, %v: %w", expression, a, err, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}
