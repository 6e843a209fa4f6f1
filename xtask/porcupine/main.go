// Porcupine's verdict on histories of single keys, as JSON lines of docs/src/history.md: prints for
// each file "linearizable", "violation" or "undecided".
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

// A line of the file. Strings are bytes that are UTF-8, which simulated histories are.
type line struct {
	Process  int             `json:"process"`
	Op       string          `json:"op"`
	Key      string          `json:"key"`
	Value    *string         `json:"value"`
	Expected *string         `json:"expected"`
	By       int64           `json:"by"`
	Invoke   int64           `json:"invoke"`
	Return   int64           `json:"return"`
	Outcome  string          `json:"outcome"`
	Result   json.RawMessage `json:"result"`
}

// What a key holds.
type state struct {
	present bool
	value   string
}

// The answer and the state after an operation that was executed alone.
func (l line) apply(s state) (any, state) {
	switch l.Op {
	case "get":
		return text(s), s
	case "set":
		return "OK", state{true, *l.Value}
	case "getset":
		return text(s), state{true, *l.Value}
	case "del":
		return number(s.present), state{}
	case "setnx":
		if s.present {
			return number(false), s
		}
		return number(true), state{true, *l.Value}
	case "cas":
		holds := l.Expected == nil && !s.present ||
			l.Expected != nil && s.present && *l.Expected == s.value
		if !holds {
			return number(false), s
		}
		return number(true), state{true, *l.Value}
	case "append":
		value := s.value + *l.Value
		return float64(len(value)), state{true, value}
	case "incr":
		held := int64(0)
		if s.present {
			parsed, err := strconv.ParseInt(s.value, 10, 64)
			if err != nil {
				return "error", s
			}
			held = parsed
		}
		sum := held + l.By
		if (l.By > 0) != (sum > held) && l.By != 0 {
			return "error", s
		}
		return float64(sum), state{true, strconv.FormatInt(sum, 10)}
	}
	panic("unknown operation " + l.Op)
}

func text(s state) any {
	if s.present {
		return s.value
	}
	return nil
}

func number(yes bool) any {
	if yes {
		return 1.0
	}
	return 0.0
}

// The answer that the client got; whether there was one.
func (l line) answer() (any, bool) {
	if l.Outcome != "done" {
		return nil, false
	}
	if len(l.Result) == 0 {
		return "OK", true
	}
	var value any
	if err := json.Unmarshal(l.Result, &value); err != nil {
		panic(err)
	}
	if _, isError := value.(map[string]any); isError {
		return "error", true
	}
	return value, true
}

var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		keys := map[string][]porcupine.Operation{}
		for _, operation := range history {
			key := operation.Input.(line).Key
			keys[key] = append(keys[key], operation)
		}
		var parts [][]porcupine.Operation
		for _, part := range keys {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return state{} },
	Step: func(before, input, _ any) (bool, any) {
		operation := input.(line)
		computed, after := operation.apply(before.(state))
		seen, known := operation.answer()
		return !known || seen == computed, after
	},
}

func judge(path string) (porcupine.CheckResult, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 1<<26)
	var history []porcupine.Operation
	for scanner.Scan() {
		var l line
		if err := json.Unmarshal(scanner.Bytes(), &l); err != nil {
			return "", err
		}
		if l.Op == "" || l.Outcome == "refused" {
			continue
		}
		end := l.Return
		if l.Outcome == "unknown" {
			// It may take effect at any time, or after everything, where nobody can tell.
			end = math.MaxInt64
		}
		history = append(history, porcupine.Operation{
			ClientId: l.Process, Input: l, Call: l.Invoke, Return: end,
		})
	}
	if err := scanner.Err(); err != nil {
		return "", err
	}
	return porcupine.CheckOperationsTimeout(model, history, 20*time.Second), nil
}

func main() {
	for _, path := range os.Args[1:] {
		result, err := judge(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, path+":", err)
			os.Exit(2)
		}
		verdict := map[porcupine.CheckResult]string{
			porcupine.Ok: "linearizable", porcupine.Illegal: "violation",
			porcupine.Unknown: "undecided",
		}[result]
		fmt.Println(path, verdict)
	}
}
