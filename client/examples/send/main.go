// Command send counts three orders: the program of docs/guide/client.md.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"lightmetrics.dev/lightmetrics/client"
)

func main() {
	w, err := client.Open("shop-queue", client.Options{Agent: "shop-1", Collectors: os.Args[1:]})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	orders := &client.Series{Name: "shop_orders_total", Type: client.Counter, Help: "Orders taken."}
	if err := w.Append(context.Background(), orders.Now(3)); err != nil {
		log.Fatal(err) // nil: on disk, and sent by the next run if not by this one
	}
	fmt.Println("accepted by a collector:", w.Flush(context.Background()) == nil)
}
