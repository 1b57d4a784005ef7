// Renders a template for each conversation on stdin, as ollama does: with text/template, and the messages in .Messages.
package main

import (
	"encoding/json"
	"os"
	"strings"
	"text/template"
)

type message struct{ Role, Content string }

func main() {
	var given struct {
		Template      string
		Conversations [][]*message
	}
	check(json.NewDecoder(os.Stdin).Decode(&given))
	parsed, err := template.New("").Option("missingkey=zero").Parse(given.Template)
	check(err)
	rendered := []string{}
	for _, messages := range given.Conversations {
		var text strings.Builder
		check(parsed.Execute(&text, map[string]any{"Messages": messages, "System": "", "Response": ""}))
		rendered = append(rendered, text.String())
	}
	check(json.NewEncoder(os.Stdout).Encode(rendered))
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
