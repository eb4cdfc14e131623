package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"lightmetrics.dev/lightmetrics/client"
	"lightmetrics.dev/lightmetrics/pkg/frame"
)

// Count something and send it. Append returns once the samples are on disk, Flush once a
// collector has them for good.
func Example() {
	dir, err := os.MkdirTemp("", "queue")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()

	w, err := client.Open(dir, client.Options{Agent: "shop-2", Collectors: []string{collector}})
	if err != nil {
		log.Fatal(err)
	}
	orders := &client.Series{Name: "shop_orders_total", Type: client.Counter, Labels: client.Labels{"country": "fi"}}
	if err := w.Append(ctx, orders.Now(1), orders.At(time.Now().Add(-time.Minute), 0)); err != nil {
		log.Fatal(err)
	}
	fmt.Println("flush:", w.Flush(ctx))
	fmt.Println("pending:", w.Stats().Pending, "next number:", w.Stats().NextSeq)
	fmt.Println("close:", w.Close())
	// Output:
	// flush: <nil>
	// pending: 0 next number: 3
	// close: <nil>
}

// In tests nothing need be on disk. Without a collector what is pending is lost with the
// Writer, and Close says so.
func ExampleOpen_memory() {
	w, err := client.Open(client.Memory, client.Options{Agent: "a-test", Collectors: []string{collector}})
	if err != nil {
		log.Fatal(err)
	}
	up := &client.Series{Name: "up", Type: client.Gauge}
	fmt.Println("append:", w.Append(context.Background(), up.Now(1)))
	fmt.Println("close:", w.Close())
	// Output:
	// append: <nil>
	// close: <nil>
}

// A call with samples that no collector would take queues nothing and names each of them.
func ExampleWriter_Append_invalid() {
	w, err := client.Open(client.Memory, client.Options{Agent: "careless", Collectors: []string{collector}})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	now := time.Now()
	good, nameless := &client.Series{Name: "temperature", Type: client.Gauge}, &client.Series{Type: client.Gauge}
	err = w.Append(context.Background(), good.At(now, 20), nameless.At(now, 1), good.At(now, 21))

	var invalid *client.InvalidError
	if errors.As(err, &invalid) {
		for _, s := range invalid.Samples {
			fmt.Println("sample", s.Index, s.Reason)
		}
	}
	fmt.Println("bad labels:", errors.Is(err, frame.BadLabels), "queued:", w.Stats().NextSeq-1)
	// Output:
	// sample 1 BAD_LABELS
	// sample 2 BAD_COLUMN
	// bad labels: true queued: 0
}

// Batches that collectors refuse are kept, reported, and named by the next Flush. Here the
// clock of the program is wrong by years.
func ExampleOptions_onReject() {
	rejected := make(chan client.Refusal, 1)
	w, err := client.Open(client.Memory, client.Options{
		Agent: "from-the-future", Collectors: []string{collector},
		OnReject: func(r client.Refusal) { rejected <- r },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	level := &client.Series{Name: "level", Type: client.Gauge}
	if err := w.Append(context.Background(), level.At(time.Now().AddDate(5, 0, 0), 1)); err != nil {
		log.Fatal(err)
	}
	var refused *client.RefusedError
	fmt.Println("refused:", errors.As(w.Flush(context.Background()), &refused), refused.Batches)
	r := <-rejected
	fmt.Println(r.Reason, "records:", r.Batch.Count())
	fmt.Println("discard:", w.Discard(r.ID), "left:", len(w.Refusals()))
	// Output:
	// refused: true 1
	// TIME_IN_FUTURE records: 1
	// discard: <nil> left: 0
}

// A distribution, as a native histogram: count, sum, and exponential buckets.
func ExampleSeries_HistogramAt() {
	w, err := client.Open(client.Memory, client.Options{Agent: "timer", Collectors: []string{collector}})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	latency := &client.Series{Name: "latency", Unit: "seconds", Type: client.HistogramCumulative, Start: time.Now().Add(-time.Hour)}
	// Schema 0 has buckets between powers of two: here 2 observations in (0.5, 1] and 1 in (1, 2].
	h := client.Histogram{Schema: 0, Count: 3, Sum: 2.9, PositiveSpans: []int32{0, 2}, PositiveBuckets: []float64{2, 1}}
	fmt.Println(w.Append(context.Background(), latency.HistogramAt(time.Now(), h)))
	fmt.Println(w.Flush(context.Background()))
	// Output:
	// <nil>
	// <nil>
}

// An answer says how complete it is.
func ExampleQuerier_Instant() {
	q, err := client.DialQuery(queryNode, client.Credentials{})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()
	answer, err := q.Instant(context.Background(), `sum by (article) (stock)`, time.Time{})
	if err != nil {
		log.Fatal(err)
	}
	if err := answer.Completeness.Err(); err != nil {
		log.Fatal(err)
	}
	for _, s := range answer.Series {
		fmt.Println(s.Labels["article"], s.Points[0].Value)
	}
	// Output: lamp 12
}

// Errors have stable reasons to branch on.
func ExampleError() {
	q, err := client.DialQuery(queryNode, client.Credentials{})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()
	_, err = q.Instant(context.Background(), `sum(`, time.Time{})
	var e *client.Error
	if errors.As(err, &e) {
		fmt.Println(e.Reason, "temporary:", e.Temporary)
	}
	// Output: BAD_QUERY temporary: false
}

// A program that reads what it has just written: the query waits until the node has seen the batch.
func ExampleWriter_Written() {
	ctx := context.Background()
	w, err := client.Open(client.Memory, client.Options{Agent: "shop-7", Collectors: []string{collector}})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	q, err := client.DialQuery(queryNode, client.Credentials{})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()

	carts := &client.Series{Name: "shop_carts", Type: client.Gauge}
	if err := w.Append(ctx, carts.Now(7)); err != nil {
		log.Fatal(err)
	}
	if err := w.Flush(ctx); err != nil {
		log.Fatal(err)
	}
	answer, err := q.InstantAfter(ctx, w.Written(), "shop_carts", time.Time{})
	var failed *client.Error
	if errors.As(err, &failed) && failed.Reason == client.ReasonNotVisible {
		log.Fatal("the node lags: ask again, or another one")
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.Series[0].Points[0].Value, answer.Completeness.Partial)
	// Output: 7 false
}
